// The feature maps of the kinds linear, performer and affine_square.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

constexpr int kRowTile = 24;

}  // namespace

void CpuBackend::LinearFeatures(const float* x, int64_t rows, int width, const float* factors,
                                int heads, float* out) {
  context_.ParallelRows(rows, 64, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      const V factor = Set1(factors == nullptr ? 1.0f : factors[m % heads]);
      for (int i = 0; i < width; i += kLanes) {
        const Mask mask = FirstN(std::min(kLanes, width - i));
        const V v = LoadMasked(x + m * width + i, mask);
        // elu(x) + 1: e^x below zero, x + 1 from zero on.
        const V feature = Select(Less(v, Zero()), Exp(v), Add(v, Set1(1.0f)));
        StoreMasked(Mul(factor, feature), out + m * width + i, mask);
      }
    }
  });
}

void CpuBackend::PerformerFeatures(const Matrix& matrix, const float* x, int64_t rows, float* out) {
  const PackedMatrix& omega = Packed(matrix);
  const int64_t d = omega.in(), m = omega.out();
  const int64_t width = omega.panels() * kPanelColumns;
  const float root = 1.0f / std::sqrt(std::sqrt(static_cast<float>(d)));
  const V scale = Set1(1.0f / std::sqrt(static_cast<float>(m)));
  context_.pool().ParallelFor((rows + kRowTile - 1) / kRowTile, [&](int64_t task, int thread) {
    const int64_t first = task * kRowTile;
    const int count = static_cast<int>(std::min<int64_t>(kRowTile, rows - first));
    float* scaled = context_.Scratch(thread, kRowTile * (d + kLanes + width));
    float* projected = scaled + kRowTile * (d + kLanes);
    for (int64_t i = 0; i < count * d; ++i) scaled[i] = x[first * d + i] * root;
    MultiplyRows({}, scaled, d, count, omega, nullptr, projected, width);
    for (int r = 0; r < count; ++r) {
      V squares = Zero();
      for (int64_t i = 0; i < d; i += kLanes) {
        const V v = LoadMasked(scaled + r * d + i,
                               FirstN(static_cast<int>(std::min<int64_t>(kLanes, d - i))));
        squares = Fma(v, v, squares);
      }
      const V half_norm = Set1(0.5f * ReduceAdd(squares));
      for (int64_t i = 0; i < m; i += kLanes) {
        const Mask mask = FirstN(static_cast<int>(std::min<int64_t>(kLanes, m - i)));
        const V features = Mul(scale, Exp(Sub(Load(projected + r * width + i), half_norm)));
        StoreMasked(features, out + (first + r) * m + i, mask);
      }
    }
  });
}

void CpuBackend::AffineFeatures(const float* x, int64_t rows, int width, const float* terms,
                                int heads, float* out) {
  const int stride = (width + 8) / 8 * 8;
  context_.ParallelRows(rows, 128, [&](int64_t first, int64_t last, int) {
    for (int64_t m = first; m < last; ++m) {
      const float* term = terms == nullptr ? nullptr : terms + m % heads * 2;
      const float* from = x + m * width;
      float* to = out + m * stride;
      to[0] = term == nullptr ? 1.0f : term[0];
      const V factor = Set1(term == nullptr ? 1.0f : term[1]);
      for (int i = 0; i < width; i += kLanes) {
        const Mask mask = FirstN(std::min(kLanes, width - i));
        StoreMasked(Mul(factor, LoadMasked(from + i, mask)), to + 1 + i, mask);
      }
      std::fill(to + 1 + width, to + stride, 0.0f);
    }
  });
}

void CpuBackend::HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                          const float* biases, int size, float* out) {
  PS_CHECK(size % kLanes == 0) << size;
  context_.ParallelRows(rows, 8, [&](int64_t first, int64_t last, int) {
    for (int h = 0; h < heads; ++h) {
      const float* bias = biases + h * size;
      float* to = out + (first * heads + h) * size;
      for (int64_t m = 0; m < last - first; ++m) std::copy_n(bias, size, to + m * heads * size);
      const RowsF32 map{maps + int64_t{h} * width * size, size};
      MultiplyInCache(x + (first * heads + h) * width, int64_t{heads} * width, 1,
                      static_cast<int>(last - first), width, map, size / kLanes, to,
                      int64_t{heads} * size, /*accumulate=*/true);
    }
  });
}

#include "kernels/cpu/isa_end.inc"
