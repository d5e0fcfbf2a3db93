#include <immintrin.h>

#include <cmath>

#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"

namespace {

constexpr float kEpsilon = 1e-5f;

// Calls fn(offset, mask) for every vector of a row; the last may be partial.
template <typename Fn>
PS_INLINE void ForVectors(int width, const Fn& fn) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) fn(i, FirstN(kLanes));
  if (i < width) fn(i, FirstN(width - i));
}

void NormalizeRow(const float* x, int width, const NormWeights& norm, float* out) {
  V sum = Zero();
  ForVectors(
      width, [&](int i, Mask k)
                 __attribute__((always_inline)) { sum = Add(sum, LoadMasked(x + i, k)); });
  const float mean = ReduceAdd(sum) / static_cast<float>(width);
  const V mean_v = Set1(mean);
  V squares = Zero();
  ForVectors(
      width, [&](int i, Mask k) __attribute__((always_inline)) {
        const V centred = ZeroUnless(k, Sub(LoadMasked(x + i, k), mean_v));
        squares = Fma(centred, centred, squares);
      });
  const float variance = ReduceAdd(squares) / static_cast<float>(width);
  const V inverse = Set1(1.0f / std::sqrt(variance + kEpsilon));
  ForVectors(
      width, [&](int i, Mask k) __attribute__((always_inline)) {
        const V centred = Sub(LoadMasked(x + i, k), mean_v);
        const V scaled = Mul(centred, Mul(inverse, LoadMasked(norm.scale + i, k)));
        StoreMasked(Add(scaled, LoadMasked(norm.bias + i, k)), out + i, k);
      });
}

}  // namespace

void LayerNormRows(const float* x, int64_t x_row, int64_t rows, int width, const NormWeights& norm,
                   float* out, int64_t out_row) {
  for (int64_t m = 0; m < rows; ++m) NormalizeRow(x + m * x_row, width, norm, out + m * out_row);
}

void CpuBackend::LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                           float* out) {
  const int64_t grain = 1 + 8192 / width;
  context_.ParallelRows(rows, grain, [&](int64_t first, int64_t last, int) {
    LayerNormRows(x + first * width, width, last - first, width, norm, out + first * width, width);
  });
}

#include "kernels/cpu/isa_end.h"
