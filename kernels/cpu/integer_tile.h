// Products of 16-bit integers with 8-bit ones, for states that are read at one byte: register tiles
// of MR rows x NV vectors of columns over pairs of k,
//   acc[m][n] += a[m][2 k] b[2 k][n] + a[m][2 k + 1] b[2 k + 1][n].
// Integer sums are exact, so neither tiles nor instruction sets change a bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_prefetch.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

// The largest magnitude of a 16-bit operand, and the pairs whose products fit a 32-bit sum:
// 2 * 256 * 32767 * 127 < 2^31. Longer products are sums of float32, in order.
constexpr float kWordMax = 32767.0f;
constexpr int64_t kPairsOfASum = 256;

PS_INLINE int64_t RoundUpToLanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// B as 8-bit integers: columns of pair k at data + k * stride, 2 bytes each.
struct BytePairRows {
  const int8_t* data;
  int64_t stride;  // bytes
  LinePrefetcher* prefetcher;
  template <int NV>
  PS_INLINE void LoadPair(const BytePairRows& b, int64_t k, I (&out)[NV]) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) out[n] = WidenBytes(b.data + k * b.stride + n * 2 * kLanes);
  }
  BytePairRows Columns(int64_t first) const { return {data + 2 * first, stride, prefetcher}; }
  // The lines that a product of `pairs` pairs prefetches.
  LoopLines Lines(int64_t pairs) const { return prefetcher->Take(pairs * kLinesOfAPair); }
};

// B widened to 16 bits, for many rows of A.
struct WordPairRows {
  const int16_t* data;
  int64_t stride;  // words
  template <int NV>
  PS_INLINE void LoadPair(const WordPairRows& b, int64_t k, I (&out)[NV]) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) out[n] = IntLoad(b.data + k * b.stride + n * 2 * kLanes);
  }
  WordPairRows Columns(int64_t first) const { return {data + 2 * first, stride}; }
  NoLines Lines(int64_t /*pairs*/) const { return {}; }
};

// size: a multiple of 32.
static void WidenPairs(const int8_t* bytes, int64_t size, int16_t* out) {
  for (int64_t i = 0; i < size; i += 2 * kLanes) IntStore(WidenBytes(bytes + i), out + i);
}

// Rows of 16-bit integers, row m times scales[m].
struct IntegerRows {
  int16_t* words;
  int64_t stride;  // words, even
  float* scales;
};

// Where the product goes: out[m][n] = (accumulate ? out : 0) + sum * (scale of the row * that of
// the column).
struct IntegerOutput {
  float* out;
  int64_t stride;
  const float* column_scales;  // null: all 1
  bool accumulate;
};

template <int MR, int NV, typename B>
static void IntegerTile(const IntegerRows& a, int64_t row, int64_t pairs, const B& b,
                        const IntegerOutput& output, int64_t column) {
  V total[MR][NV];
  for (int64_t first = 0; first < pairs; first += kPairsOfASum) {
    I acc[MR][NV], odd[MR][NV];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[m][n] = odd[m][n] = IntZero();
    }
    const int64_t end = std::min(pairs, first + kPairsOfASum);
    const auto lines = b.Lines(end - first);
    const auto add = [&](int64_t k, I(&sums)[MR][NV]) __attribute__((always_inline)) {
      lines.template Prefetch<kLinesOfAPair>(k - first);
      I words[NV];
      B::template LoadPair<NV>(b, k, words);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const I x = BroadcastBytes(a.words + (row + m) * a.stride + 2 * k);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) sums[m][n] = DotWords(sums[m][n], x, words[n]);
      }
    };
    int64_t k = first;
    // A single row has too few sums to cover the latency of DotWords: those of odd pairs are apart,
    // if there are registers for them.
    if constexpr (MR == 1 && NV <= kMaxTileVectors) {
      for (; k + 2 <= end; k += 2) {
        add(k, acc);
        add(k + 1, odd);
      }
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[0][n] = IntAdd(acc[0][n], odd[0][n]);
    }
    for (; k < end; ++k) add(k, acc);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        const V sum = ToFloat(acc[m][n]);
        total[m][n] = first == 0 ? sum : Add(total[m][n], sum);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    const V row_scale = Set1(a.scales[row + m]);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      V scale = row_scale;
      if (output.column_scales != nullptr) {
        scale = Mul(scale, Load(output.column_scales + column + n * kLanes));
      }
      float* out = output.out + (row + m) * output.stride + column + n * kLanes;
      const V value = Mul(total[m][n], scale);
      Store(output.accumulate ? Add(Load(out), value) : value, out);
    }
  }
}

template <int NV, typename B>
static void IntegerBand(const IntegerRows& a, int rows, int64_t pairs, const B& b,
                        const IntegerOutput& output, int64_t column) {
  int m = 0;
  if constexpr (NV <= kMaxTileVectors) {
    constexpr int kFull = kTileRows<NV>;
    for (; m + kFull <= rows; m += kFull) {
      IntegerTile<kFull, NV>(a, m, pairs, b, output, column);
    }
  }
  for (; m < rows; ++m) IntegerTile<1, NV>(a, m, pairs, b, output, column);
}

template <int kFull, typename B>
static void IntegerBands(const IntegerRows& a, int rows, int64_t pairs, const B& b, int vectors,
                         const IntegerOutput& output) {
  int n = 0;
  for (; n + kFull <= vectors; n += kFull) {
    IntegerBand<kFull>(a, rows, pairs, b.Columns(n * kLanes), output, n * kLanes);
  }
  if constexpr (kFull > 1) {
    for (; n < vectors; ++n) {
      IntegerBand<1>(a, rows, pairs, b.Columns(n * kLanes), output, n * kLanes);
    }
  }
}

// The product of rows [0, rows) of `a` with b [2 * pairs, vectors * 16].
template <typename B>
static void MultiplyIntegers(const IntegerRows& a, int rows, int64_t pairs, const B& b, int vectors,
                             const IntegerOutput& output) {
  if (rows < kTileRows<kMaxTileVectors>) {
    return IntegerBands<kSingleRowVectors>(a, rows, pairs, b, vectors, output);
  }
  IntegerBands<kMaxTileVectors>(a, rows, pairs, b, vectors, output);
}

// Rounds x [size], whole vectors, to 16-bit integers.
PS_INLINE void RoundVectors(const float* x, int64_t size, float inverse, int16_t* out) {
  const V factor = Set1(inverse);
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    StoreSignedWords(Mul(Load(x + i), factor), Mul(Load(x + i + kLanes), factor), out + i);
  }
  if (i < size) StoreSignedWords(Mul(Load(x + i), factor), out + i);
}

// Rounds rows [0, rows) of x, `x_row` apart, to rows of `out` with one scale each. size(m): the
// floats of row m, whole vectors. magnitudes [kLanes]: the largest |x| of each row; rows <= kLanes.
template <typename Size>
static void RoundRows(const float* x, int64_t x_row, int rows, const Size& size,
                      const float* magnitudes, const IntegerRows& out) {
  QuantScale scales[kLanes];
  QuantScales(magnitudes, rows, scales, kWordMax);
  for (int m = 0; m < rows; ++m) {
    out.scales[m] = scales[m].scale;
    RoundVectors(x + m * x_row, size(m), scales[m].inverse, out.words + m * out.stride);
  }
}

template <typename Lines>
PS_INLINE float RoundRow(const float* x, int64_t size, int16_t* out, const Lines& lines) {
  const int64_t whole = size / kLanes * kLanes;
  const Mask tail = FirstN(static_cast<int>(size - whole));
  I largest = MaxMagnitude(IntZero(), LoadMasked(x + whole, tail));
  for (int64_t i = 0; i < whole; i += kLanes) {
    lines.template Prefetch<kLinesOfAVector>(i / kLanes);
    largest = MaxMagnitude(largest, Load(x + i));
  }
  const QuantScale scale = QuantScale::Of(ReduceMagnitude(largest), kWordMax);
  RoundVectors(x, whole, scale.inverse, out);
  if (whole < size) {
    StoreSignedWords(Mul(LoadMasked(x + whole, tail), Set1(scale.inverse)), out + whole);
  }
  return scale.scale;
}

// Rounds x [size] to 16-bit integers, and zeros up to a whole vector, with one scale, which it
// returns. prefetcher: may be null.
static float RoundToWords(const float* x, int64_t size, int16_t* out, LinePrefetcher* prefetcher) {
  if (prefetcher == nullptr) return RoundRow(x, size, out, NoLines());
  return RoundRow(x, size, out, prefetcher->TakeForVectors(size));
}

template <typename Lines>
PS_INLINE float ScaleRowBy(const float* y, int64_t size, float* x, const Lines& lines) {
  I largest = IntZero();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    lines.template Prefetch<kLinesOfAScaledVector>(i / kLanes);
    const V scaled = Mul(Load(x + i), Load(y + i));
    largest = MaxMagnitude(largest, scaled);
    Store(scaled, x + i);
  }
  if (i < size) {
    const Mask tail = FirstN(static_cast<int>(size - i));
    const V scaled = Mul(LoadMasked(x + i, tail), LoadMasked(y + i, tail));
    largest = MaxMagnitude(largest, scaled);
    Store(scaled, x + i);
  }
  return ReduceMagnitude(largest);
}

// x[i] *= y[i], i < size, and zeros up to a whole vector. Returns the largest magnitude.
// prefetcher: may be null.
static float ScaleBy(const float* y, int64_t size, float* x, LinePrefetcher* prefetcher) {
  if (prefetcher == nullptr) return ScaleRowBy(y, size, x, NoLines());
  const int64_t lines = RoundUpToLanes(size) / kLanes * kLinesOfAScaledVector;
  return ScaleRowBy(y, size, x, prefetcher->Take(lines));
}

#include "kernels/cpu/isa_end.inc"
