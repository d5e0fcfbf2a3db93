// The inner loop of all float32 products: a register tile of MR rows x NV vectors,
//   acc[m][n] = fma(a[m][k], b[k][n], acc[m][n]),  k = 0, 1, 2, ...
// k runs in order with one accumulator for each output element, so the bits of an element do not
// depend on the tile; MR and NV affect speed only.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

// An operand B provides kStep rows at a time, rows k to k + kStep - 1 for multiples k of kStep.
// Rows after the last one are not used.

// B as float32 rows of whole vectors: row k at data + k * stride.
struct RowsF32 {
  static constexpr int kStep = 1;
  const float* data;
  int64_t stride;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const RowsF32& b, int64_t k, V (&out)[NV]) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) out[n] = Load(b.data + k * b.stride + n * kLanes);
  }
  RowsF32 Columns(int64_t first) const { return {data + first, stride}; }
};

// What is read after an operand. Prefetches that run past the `end` of its array continue at `next`;
// those of a tile of a cache (attention_elements.h) begin there.
struct Readahead {
  const void* end;
  const void* next;
};

// B as bf16 rows, such as the upper plane of a state.
struct RowsBf16 {
  static constexpr int kStep = 1;
  const uint16_t* data;
  int64_t stride;
  Readahead ahead;
  template <int NV, int kPart>
  PS_INLINE void LoadRow(const RowsBf16& b, int64_t k, V (&out)[NV]) {
    // Prefetches one page ahead; the hardware's prefetchers stop at the end of a page.
    constexpr int kAhead = 4096, kLine = 64;  // bytes
    const char* line = reinterpret_cast<const char*>(b.data + k * b.stride) + kAhead;
    const auto* end = static_cast<const char*>(b.ahead.end);
    if (line >= end) line += static_cast<const char*>(b.ahead.next) - end;
#pragma GCC unroll 2
    for (int i = 0; i < NV * kLanes * 2; i += kLine) __builtin_prefetch(line + i);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) out[n] = LoadBf16(b.data + k * b.stride + n * kLanes);
  }
  RowsBf16 Columns(int64_t first) const { return {data + first, stride, ahead}; }
};

// Adds the products of row k + kPart.
template <int kPart, int MR, int NV, typename B>
PS_INLINE void MultiplyRow(const float* a, int64_t a_row, int64_t a_col, int64_t k, const B& b,
                           V (&acc)[MR][NV]) {
  V row[NV];
  B::template LoadRow<NV, kPart>(b, k, row);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    const V x = Set1(a[m * a_row + (k + kPart) * a_col]);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) acc[m][n] = Fma(x, row[n], acc[m][n]);
  }
}

// a[m][k] at a + m * a_row + k * a_col.
template <int MR, int NV, typename B>
PS_INLINE void MultiplyTile(const float* a, int64_t a_row, int64_t a_col, int64_t depth, const B& b,
                            V (&acc)[MR][NV]) {
  int64_t k = 0;
  for (; k + B::kStep <= depth; k += B::kStep) {
    MultiplyRow<0>(a, a_row, a_col, k, b, acc);
    if constexpr (B::kStep == 2) {
      // Loads the words again: AVX2 has no register to keep them from the first row.
      asm volatile("" ::: "memory");
      MultiplyRow<1>(a, a_row, a_col, k, b, acc);
    }
  }
  if constexpr (B::kStep == 2) {
    if (k < depth) MultiplyRow<0>(a, a_row, a_col, k, b, acc);
  }
}

// c [MR, NV vectors] = (accumulate ? c : 0) + a b.
template <int MR, int NV, typename B>
static void ProductTile(const float* a, int64_t a_row, int64_t a_col, int64_t depth, const B& b,
                        float* c, int64_t c_row, bool accumulate) {
  V acc[MR][NV];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      acc[m][n] = accumulate ? Load(c + m * c_row + n * kLanes) : Zero();
    }
  }
  MultiplyTile<MR, NV>(a, a_row, a_col, depth, b, acc);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) Store(acc[m][n], c + m * c_row + n * kLanes);
  }
}

// A band of NV vectors of columns, any number of rows.
template <int NV, typename B>
static void ProductBand(const float* a, int64_t a_row, int64_t a_col, int rows, int64_t depth,
                        const B& b, float* c, int64_t c_row, bool accumulate) {
  constexpr int kFull = kTileRows<NV>;
  int m = 0;
  for (; m + kFull <= rows; m += kFull) {
    ProductTile<kFull, NV>(a + m * a_row, a_row, a_col, depth, b, c + m * c_row, c_row, accumulate);
  }
  if constexpr (kFull > 4) {
    for (; m + 4 <= rows; m += 4) {
      ProductTile<4, NV>(a + m * a_row, a_row, a_col, depth, b, c + m * c_row, c_row, accumulate);
    }
  }
  const auto rest = [&]<int MR>() {
    ProductTile<MR, NV>(a + m * a_row, a_row, a_col, depth, b, c + m * c_row, c_row, accumulate);
    m += MR;
  };
  if (rows - m == 3) rest.template operator()<3>();
  if (rows - m == 2) rest.template operator()<2>();
  if (rows - m == 1) rest.template operator()<1>();
}

// c [rows, vectors * 16] = (accumulate ? c : 0) + a b; a [rows, depth] by strides, b [depth,
// vectors * 16]. For operands in cache, as in attention; matmul.cc multiplies by weights.
template <typename B>
static void MultiplyInCache(const float* a, int64_t a_row, int64_t a_col, int rows, int64_t depth,
                            const B& b, int vectors, float* c, int64_t c_row, bool accumulate) {
  int n = 0;
  if constexpr (kMaxTileVectors < kSingleRowVectors) {
    // A row leaves registers for more columns, so that B is read in long runs.
    for (; rows == 1 && n + kSingleRowVectors <= vectors; n += kSingleRowVectors) {
      ProductTile<1, kSingleRowVectors>(a, a_row, a_col, depth, b.Columns(n * kLanes),
                                        c + n * kLanes, c_row, accumulate);
    }
  }
  for (; n + kMaxTileVectors <= vectors; n += kMaxTileVectors) {
    ProductBand<kMaxTileVectors>(a, a_row, a_col, rows, depth, b.Columns(n * kLanes),
                                 c + n * kLanes, c_row, accumulate);
  }
  if constexpr (kMaxTileVectors > 1) {
    for (; n + 2 <= vectors; n += 2) {
      ProductBand<2>(a, a_row, a_col, rows, depth, b.Columns(n * kLanes), c + n * kLanes, c_row,
                     accumulate);
    }
    for (; n < vectors; ++n) {
      ProductBand<1>(a, a_row, a_col, rows, depth, b.Columns(n * kLanes), c + n * kLanes, c_row,
                     accumulate);
    }
  }
}

#include "kernels/cpu/isa_end.inc"
