#include "kernels/angles.h"

#include <cmath>
#include <cstddef>
#include <utility>

namespace polysketch {

namespace {

// T: float, to which values are rounded once, or double.
template <typename T>
void CosSinOf(std::span<const float> thetas, int64_t position, T* cos_out, T* sin_out) {
  for (size_t i = 0; i < thetas.size(); ++i) {
    const double angle = static_cast<double>(thetas[i]) * static_cast<double>(position);
    cos_out[i] = static_cast<T>(std::cos(angle));
    sin_out[i] = static_cast<T>(std::sin(angle));
  }
}

}  // namespace

std::vector<float> RopeThetas(int head_dim, double base) {
  std::vector<float> thetas(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    thetas[i] = static_cast<float>(std::pow(base, -2.0 * i / head_dim));
  }
  return thetas;
}

std::vector<float> PositionThetas(int width) {
  const int half = width / 2;
  std::vector<float> thetas(half);
  for (int i = 0; i < half; ++i) {
    thetas[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / half));
  }
  return thetas;
}

void CosSin(std::span<const float> thetas, int64_t position, float* cos_out, float* sin_out) {
  CosSinOf(thetas, position, cos_out, sin_out);
}

Rotations::Rotations(std::vector<float> thetas)
    : thetas_(std::move(thetas)), cos_(kRun * size()), sin_(kRun * size()) {
  for (int64_t i = 0; i < kRun; ++i) {
    CosSinOf(thetas_, i, cos_.data() + i * size(), sin_.data() + i * size());
  }
}

void Rotations::CosSin(int64_t position, Start* start, float* cos_out, float* sin_out) const {
  if (position >= kExactPositions) {
    return polysketch::CosSin(thetas_, position, cos_out, sin_out);
  }
  const int64_t turn = position % kRun;
  if (start->position != position - turn) {
    start->cos.resize(size());
    start->sin.resize(size());
    CosSinOf(thetas_, position - turn, start->cos.data(), start->sin.data());
    start->position = position - turn;
  }
  const double *a_cos = start->cos.data(), *a_sin = start->sin.data();
  const double *b_cos = cos_.data() + turn * size(), *b_sin = sin_.data() + turn * size();
  for (int64_t i = 0; i < size(); ++i) {
    cos_out[i] = static_cast<float>(a_cos[i] * b_cos[i] - a_sin[i] * b_sin[i]);
    sin_out[i] = static_cast<float>(a_sin[i] * b_cos[i] + a_cos[i] * b_sin[i]);
  }
}

}  // namespace polysketch
