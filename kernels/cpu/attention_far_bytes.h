// The far part of states that are read at one byte (StateFormat::kQ8): a copy of S as 8-bit
// integers (kernels/state_bytes.h), its products with features, and folds of values as 8-bit
// integers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_far.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_prefetch.h"
#include "kernels/cpu/integer_tile.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"
#include "kernels/quantize.h"

#include "kernels/cpu/isa_begin.inc"

// A panel of features, times the scales of the tokens' values, as float32 and then as 16-bit
// integers with one scale for each feature. The values of the block are integers in pairs of
// tokens.
struct IntegerFold {
  static constexpr int kRows = kQueryTile;
  static_assert(kRows <= kLanes && kRows < kFoldRows);
  const HeadState& state;
  const int16_t* values;     // of the block, widened
  float* panel;              // kFoldRows * bp floats
  const IntegerRows& words;  // scratch

  // The largest magnitude of a row, in lanes: after the rows.
  static float* Magnitudes(const IntegerFold& f, const HeadLayout& layout) {
    return f.panel + kRows * layout.padded_block;
  }

  template <typename ProductOf, typename Decay>
  PS_INLINE float SetRow(const IntegerFold& f, const HeadLayout& layout, int dim, int index,
                         const ProductOf& product, const Decay& decay) {
    float* row = f.panel + index * layout.padded_block;
    const float* scales = f.state.value_scales;
    I largest = IntZero();
    const float sum = FeatureRow(
        layout, dim, product, decay, [&](V a, V b, int64_t token) __attribute__((always_inline)) {
          const V x = Mul(a, Load(scales + token)), y = Mul(b, Load(scales + token + kLanes));
          Store(x, row + token);
          Store(y, row + token + kLanes);
          largest = MaxMagnitude(MaxMagnitude(largest, x), y);
        });
    IntStore(largest, Magnitudes(f, layout) + index * kLanes);
    return sum;
  }

  void Multiply(const AttentionSpec& spec, const HeadLayout& layout, int count, float* sums) const {
    const int64_t bp = layout.padded_block, dp = layout.padded_dim;
    const float* lanes = Magnitudes(*this, layout);
    alignas(64) float magnitudes[kLanes] = {};
    for (int m = 0; m < count; ++m) magnitudes[m] = ReduceMagnitude(IntLoad(lanes + m * kLanes));
    RoundRows(
        panel, bp, count, [bp](int) { return bp; }, magnitudes, words);
    MultiplyIntegers(words, count, (spec.block + 1) / 2, WordPairRows{values, 2 * dp},
                     static_cast<int>(dp / kLanes),
                     {sums, dp, /*column_scales=*/nullptr, /*accumulate=*/false});
  }
};

// magnitudes [dp] = the largest magnitude of each column among a range of rows of S.
static void ColumnMagnitudes(const HeadLayout& layout, const HeadState& state, const Range& rows,
                             float* magnitudes) {
  const int64_t dp = layout.padded_dim;
  for (int64_t c = 0; c < dp; c += kLanes) {
    I largest = IntZero();
    for (int64_t f = rows.first; f < rows.last; ++f) {
      largest = MaxMagnitude(largest, Load(state.s + f * dp + c));
    }
    IntStore(largest, magnitudes + c);
  }
}

// inverses [dp] of the columns' scales. magnitudes [parts][dp]: of ranges that cover all rows, in
// any order, since a maximum is exact. Stores the scales in the state too if `stores`.
static void ColumnInverses(const HeadLayout& layout, const HeadState& state,
                           const float* magnitudes, int64_t parts, bool stores, float* inverses) {
  const int64_t dp = layout.padded_dim;
  for (int64_t c = 0; c < dp; c += kLanes) {
    I largest = IntZero();
    for (int64_t i = 0; i < parts; ++i) {
      largest = MaxMagnitude(largest, Load(magnitudes + i * dp + c));
    }
    alignas(64) float lanes[kLanes];
    IntStore(largest, lanes);
    for (int i = 0; i < kLanes; ++i) {
      const QuantScale scale = QuantScale::Of(lanes[i], 1.0f);
      if (stores) state.column_scales[c + i] = scale.scale;
      inverses[c + i] = scale.inverse;
    }
  }
}

// Makes a range of rows of the head's copy from S; it begins at an even row and ends at one or at
// the last row. The first range stores the scales of columns. magnitudes [parts][dp]: of all rows
// (ColumnMagnitudes). scratch: 2 dp floats.
static void CopyRows(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                     const Range& rows, const float* magnitudes, int64_t parts, float* scratch) {
  const int64_t features = spec.features(), dp = layout.padded_dim;
  float *inverses = scratch, *row = scratch + dp;
  ColumnInverses(layout, state, magnitudes, parts, /*stores=*/rows.first == 0, inverses);
  const auto scale_of = [&](int64_t f) {
    if (f == features) return QuantScale{0.0f, 0.0f};
    I largest = IntZero();
    for (int64_t c = 0; c < dp; c += kLanes) {
      largest = MaxMagnitude(largest, Mul(Load(state.s + f * dp + c), Load(inverses + c)));
    }
    const QuantScale scale = QuantScale::Of(ReduceMagnitude(largest));
    state.row_scales[f] = scale.scale;
    return scale;
  };
  std::fill_n(row, dp, 0.0f);  // the row after an odd number of features
  for (int64_t f = rows.first; f < rows.last; f += 2) {
    const V first = Set1(scale_of(f).inverse), second = Set1(scale_of(f + 1).inverse);
    const float* a = state.s + f * dp;
    const float* b = f + 1 < features ? a + dp : row;
    for (int64_t c = 0; c < dp; c += kLanes) {
      const V inverse = Load(inverses + c);
      StoreBytePairs(Mul(Mul(Load(a + c), inverse), first), Mul(Mul(Load(b + c), inverse), second),
                     state.copy + f * dp + 2 * c);
    }
  }
}

// Makes the whole copy. scratch: 3 dp floats.
static void MakeCopy(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                     float* scratch) {
  const Range rows{0, spec.features()};
  float* magnitudes = scratch + 2 * layout.padded_dim;
  ColumnMagnitudes(layout, state, rows, magnitudes);
  CopyRows(spec, layout, state, rows, magnitudes, 1, scratch);
}

// A query's features times the scales of the copy's rows, with zeros up to a whole vector; their
// largest magnitude and the sum of phi z, in lanes. The features themselves stay in registers.
struct ScaledFeatures {
  const HeadState& state;
  float* out;  // [features], in whole vectors
  V dots = Zero();
  I largest = IntZero();

  template <typename Lines>
  inline __attribute__((always_inline)) void Set(V phi, V z, V scales, int64_t f,
                                                 const Lines& lines) {
    lines.template Prefetch<kLinesOfAFeatureVector>(f / kLanes);
    dots = Fma(phi, z, dots);
    const V scaled = Mul(phi, scales);
    largest = MaxMagnitude(largest, scaled);
    Store(scaled, out + f);
  }
  // q: of a query, far_dim() elements.
  template <typename Lines>
  void SetAll(const AttentionSpec& spec, const float* q, const Lines& lines) {
    const float *z = state.z, *scales = state.row_scales;
    const auto whole = [&](V phi, int64_t f) __attribute__((always_inline)) {
      Set(phi, Load(z + f), Load(scales + f), f, lines);
    };
    if (spec.sketched()) return ForSymmetricFeatures(q, spec.far_dim(), whole);
    const int64_t features = spec.features();
    int64_t f = 0;
    for (; f + kLanes <= features; f += kLanes) whole(Load(q + f), f);
    if (f == features) return;
    const Mask tail = FirstN(static_cast<int>(features - f));
    Set(LoadMasked(q + f, tail), LoadMasked(z + f, tail), LoadMasked(scales + f, tail), f, lines);
  }
};

// out [rows][dp] = phi S, of the copy, and dots [rows] = phi z. q: rows of far_dim() elements,
// `q_row` apart. wide: the copy widened, or null to read it. phi: scratch, rows of whole vectors;
// words: scratch. prefetcher: null if `wide` is not.
static void ReadCopy(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                     const int16_t* wide, const float* q, int64_t q_row, int rows, float* phi,
                     const IntegerRows& words, LinePrefetcher* prefetcher, float* out,
                     float* dots) {
  const int64_t features = spec.features(), dp = layout.padded_dim;
  const int64_t phi_row = RoundUpToLanes(features);
  alignas(64) float magnitudes[kLanes] = {};
  for (int m = 0; m < rows; ++m) {
    ScaledFeatures row{state, phi + m * phi_row};
    if (prefetcher == nullptr) {
      row.SetAll(spec, q + m * q_row, NoLines());
    } else {
      const int64_t lines = phi_row / kLanes * kLinesOfAFeatureVector;
      row.SetAll(spec, q + m * q_row, prefetcher->Take(lines));
    }
    dots[m] = ReduceAdd(row.dots);
    magnitudes[m] = ReduceMagnitude(row.largest);
  }
  RoundRows(
      phi, phi_row, rows, [phi_row](int) { return phi_row; }, magnitudes, words);
  const int64_t pairs = (features + 1) / 2;
  const int vectors = static_cast<int>(dp / kLanes);
  const IntegerOutput output{out, dp, state.column_scales, /*accumulate=*/false};
  if (wide != nullptr) {
    MultiplyIntegers(words, rows, pairs, WordPairRows{wide, 2 * dp}, vectors, output);
  } else {
    MultiplyIntegers(words, rows, pairs, BytePairRows{state.copy, 2 * dp, prefetcher}, vectors,
                     output);
  }
}

#include "kernels/cpu/isa_end.inc"
