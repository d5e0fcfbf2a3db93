#include <algorithm>
#include <cmath>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

// Calls fn(offset, mask) for every vector of a row; the last may be partial.
template <typename Fn>
PS_INLINE void ForVectors(int width, const Fn& fn) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) fn(i, FirstN(kLanes));
  if (i < width) fn(i, FirstN(width - i));
}

// Up to kLanes rows: the divisions and square roots of all of them at once. kRms is kLayer with a
// mean of zero and without a bias.
template <NormKind kKind>
void NormalizeRows(const float* x, int64_t x_row, int rows, int width, const NormWeights& norm,
                   float* out, int64_t out_row) {
  alignas(64) float means[kLanes] = {}, inverses[kLanes] = {};
  const V width_v = Set1(static_cast<float>(width));
  constexpr bool kCentres = kKind == NormKind::kLayer;
  for (int m = 0; m < rows && kCentres; ++m) {
    V sum = Zero();
    ForVectors(
        width, [&](int i, Mask k) __attribute__((always_inline)) {
          sum = Add(sum, LoadMasked(x + m * x_row + i, k));
        });
    means[m] = ReduceAdd(sum);
  }
  if (kCentres) Store(Div(Load(means), width_v), means);
  for (int m = 0; m < rows; ++m) {
    const V mean = Set1(means[m]);
    V squares = Zero();
    ForVectors(
        width, [&](int i, Mask k) __attribute__((always_inline)) {
          V centred = LoadMasked(x + m * x_row + i, k);
          if constexpr (kCentres) centred = ZeroUnless(k, Sub(centred, mean));
          squares = Fma(centred, centred, squares);
        });
    inverses[m] = ReduceAdd(squares);
  }
  const V variances = Div(Load(inverses), width_v);
  Store(Div(Set1(1.0f), Sqrt(Add(variances, Set1(norm.epsilon)))), inverses);
  for (int m = 0; m < rows; ++m) {
    const V mean = Set1(means[m]), inverse = Set1(inverses[m]);
    ForVectors(
        width, [&](int i, Mask k) __attribute__((always_inline)) {
          V y = LoadMasked(x + m * x_row + i, k);
          if constexpr (kCentres) y = Sub(y, mean);
          y = Mul(y, Mul(inverse, LoadMasked(norm.scale + i, k)));
          if constexpr (kCentres) y = Add(y, LoadMasked(norm.bias + i, k));
          StoreMasked(y, out + m * out_row + i, k);
        });
  }
}

// Rows of NV whole vectors, which stay in registers: each has the operations of NormalizeRows,
// whose divisions wait for those of other rows.
template <NormKind kKind, int NV>
void NormalizeShortRows(const float* x, int64_t x_row, int64_t rows, const NormWeights& norm,
                        float* out, int64_t out_row) {
  constexpr float kWidth = NV * kLanes;
  constexpr bool kCentres = kKind == NormKind::kLayer;
  for (int64_t m = 0; m < rows; ++m, x += x_row, out += out_row) {
    V row[NV], sum = Zero(), squares = Zero();
#pragma GCC unroll 4
    for (int i = 0; i < NV; ++i) {
      row[i] = Load(x + i * kLanes);
      if (kCentres) sum = Add(sum, row[i]);
    }
    const V mean = Set1(kCentres ? ReduceAdd(sum) / kWidth : 0.0f);
#pragma GCC unroll 4
    for (int i = 0; i < NV; ++i) {
      if (kCentres) row[i] = Sub(row[i], mean);
      squares = Fma(row[i], row[i], squares);
    }
    const V inverse = Set1(1.0f / std::sqrt(ReduceAdd(squares) / kWidth + norm.epsilon));
#pragma GCC unroll 4
    for (int i = 0; i < NV; ++i) {
      V y = Mul(row[i], Mul(inverse, Load(norm.scale + i * kLanes)));
      if constexpr (kCentres) y = Add(y, Load(norm.bias + i * kLanes));
      Store(y, out + i * kLanes);
    }
  }
}

template <NormKind kKind>
void NormRowsOf(const float* x, int64_t x_row, int64_t rows, int width, const NormWeights& norm,
                float* out, int64_t out_row) {
  if (width == 2 * kLanes) return NormalizeShortRows<kKind, 2>(x, x_row, rows, norm, out, out_row);
  if (width == 4 * kLanes) return NormalizeShortRows<kKind, 4>(x, x_row, rows, norm, out, out_row);
  for (int64_t m = 0; m < rows; m += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, rows - m));
    NormalizeRows<kKind>(x + m * x_row, x_row, count, width, norm, out + m * out_row, out_row);
  }
}

}  // namespace

void NormRows(const float* x, int64_t x_row, int64_t rows, int width, const NormWeights& norm,
              float* out, int64_t out_row) {
  const auto run =
      norm.kind == NormKind::kLayer ? NormRowsOf<NormKind::kLayer> : NormRowsOf<NormKind::kRms>;
  run(x, x_row, rows, width, norm, out, out_row);
}

void CpuBackend::Norm(const float* x, int64_t rows, int width, const NormWeights& norm,
                      float* out) {
  const int64_t grain = 1 + 8192 / width;
  context_.ParallelRows(rows, grain, [&](int64_t first, int64_t last, int) {
    NormRows(x + first * width, width, last - first, width, norm, out + first * width, width);
  });
}

#include "kernels/cpu/isa_end.inc"
