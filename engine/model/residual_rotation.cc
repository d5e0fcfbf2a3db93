#include "engine/model/residual_rotation.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace polysketch {
namespace {

// Vectors that are rotated together: lanes of the loops below.
constexpr int64_t kRotationLanes = 16;
// Fixed: another seed is another function of the same weights, within rounding.
constexpr uint64_t kSeed = 1;

// Multiplies the axis of `size` elements, `stride` apart, of `rows` rows [kRotationLanes] by the matrix of
// a factor, without the 1 / sqrt(2) of 2.
void Reflect(int64_t rows, int64_t size, int64_t stride, double* x) {
  const int64_t width = stride * kRotationLanes;  // doubles from an element to the next
  for (int64_t first = 0; first < rows * kRotationLanes; first += size * width) {
    for (int64_t i = first; i < first + width; ++i) {
      if (size == 2) {
        const double a = x[i], b = x[i + width];
        x[i] = a + b;
        x[i + width] = a - b;
        continue;
      }
      double sum = 0;
      for (int64_t k = 0; k < size; ++k) sum += x[i + k * width];
      sum = sum * 2 / static_cast<double>(size);
      for (int64_t k = 0; k < size; ++k) x[i + k * width] -= sum;
    }
  }
}

}  // namespace

ResidualRotation::ResidualRotation(int width) : width_(width) {
  PS_CHECK(width > 0) << width;
  double magnitude = 1;
  for (int rest = width, p = 2; rest > 1;) {
    if (rest % p != 0) {
      p = p < rest / p ? p + 1 : rest;  // no factor above the root: the rest is prime
      continue;
    }
    factors_.push_back(p);
    rest /= p;
    if (p == 2) magnitude *= std::sqrt(0.5);
  }
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < width; ++i) signs_.push_back(random() >> 63 != 0 ? magnitude : -magnitude);
}

void ResidualRotation::Rotate(std::span<float> values, int64_t vector_stride,
                              int64_t element_stride, std::span<const float> scale,
                              ThreadPool* pool) const {
  const int64_t D = width_, count = std::ssize(values) / D;
  PS_CHECK(std::ssize(values) == count * D) << values.size();
  PS_CHECK(scale.empty() || std::ssize(scale) == D) << scale.size();
  std::vector<double> multipliers = signs_;
  for (size_t k = 0; k < scale.size(); ++k) multipliers[k] *= static_cast<double>(scale[k]);
  const auto rotate = [&](int64_t block, int /*thread*/) {
    const int64_t begin = block * kRotationLanes, lanes = std::min(kRotationLanes, count - begin);
    float* const first = values.data() + begin * vector_stride;
    std::vector<double> x(static_cast<size_t>(D * kRotationLanes));  // [D, kRotationLanes]
    for (int64_t k = 0; k < D; ++k) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        x[static_cast<size_t>(k * kRotationLanes + lane)] =
            static_cast<double>(first[lane * vector_stride + k * element_stride]) *
            multipliers[static_cast<size_t>(k)];
      }
    }
    int64_t stride = 1;
    for (const int p : factors_) {
      Reflect(D, p, stride, x.data());
      stride *= p;
    }
    for (int64_t k = 0; k < D; ++k) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        first[lane * vector_stride + k * element_stride] =
            static_cast<float>(x[static_cast<size_t>(k * kRotationLanes + lane)]);
      }
    }
  };
  const int64_t blocks = (count + kRotationLanes - 1) / kRotationLanes;
  if (pool != nullptr) return pool->ParallelFor(blocks, rotate);
  for (int64_t block = 0; block < blocks; ++block) rotate(block, 0);
}

std::vector<float> ResidualRotation::Conjugate(std::span<const float> scale,
                                               ThreadPool* pool) const {
  const auto D = static_cast<size_t>(width_);
  std::vector<float> matrix(D * D);
  for (size_t i = 0; i < D; ++i) matrix[i * D + i] = 1;
  RotateRows(matrix, {}, pool);
  for (size_t i = 0; i < D; ++i) {
    for (size_t j = 0; j < D; ++j) matrix[i * D + j] *= scale[i];
  }
  RotateColumns(matrix, pool);
  return matrix;
}

}  // namespace polysketch
