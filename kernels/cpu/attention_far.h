// The far part: features of queries read the state, and features of a full block's keys are folded
// into it.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_decay.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// Calls use(phi, f) for each vector of phi(x) of a query, features f, f + 1, ... in order: packed
// symmetric products; products of off-diagonal tiles are doubled (state.h). x [dim], dim a multiple
// of 8.
template <typename Use>
PS_INLINE void ForSymmetricFeatures(const float* x, int dim, const Use& use) {
  constexpr int kVectors = 4;  // of a tile: each has the products of two rows i
  int64_t f = 0;
  for (int I = 0; I < dim; I += 8) {
    V left[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      left[i] = Halves(_mm256_set1_ps(x[I + 2 * i]), _mm256_set1_ps(x[I + 2 * i + 1]));
    }
    for (int J = I; J < dim; J += 8) {
      const __m256 columns =
          _mm256_mul_ps(_mm256_set1_ps(J == I ? 1.0f : 2.0f), _mm256_loadu_ps(x + J));
      const V right = Halves(columns, columns);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i, f += kLanes) use(Mul(left[i], right), f);
    }
  }
}

// out[m] = sum of phi[m] z over the features, in lanes. R rows of phi at a time, so that z is read
// once and the additions of the R sums overlap.
template <int R>
static void FeatureDotRows(const float* phi, const float* z, int64_t features, float* out) {
  V sums[R];
#pragma GCC unroll 4
  for (V& sum : sums) sum = Zero();
  int64_t f = 0;
  for (; f + kLanes <= features; f += kLanes) {
    const V right = Load(z + f);
#pragma GCC unroll 4
    for (int m = 0; m < R; ++m) sums[m] = Fma(Load(phi + m * features + f), right, sums[m]);
  }
  if (f < features) {
    const Mask mask = FirstN(static_cast<int>(features - f));
    const V right = LoadMasked(z + f, mask);
#pragma GCC unroll 4
    for (int m = 0; m < R; ++m) {
      sums[m] = Fma(LoadMasked(phi + m * features + f, mask), right, sums[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < R; ++m) out[m] = ReduceAdd(sums[m]);
}

static void FeatureDots(const float* phi, int rows, const float* z, int64_t features, float* out) {
  int m = 0;
  for (; m + 4 <= rows; m += 4) FeatureDotRows<4>(phi + m * features, z, features, out + m);
  for (; m < rows; ++m) FeatureDotRows<1>(phi + m * features, z, features, out + m);
}

// Widens bf16 values to float32 once, for many queries or a fold that read them repeatedly. size is
// a multiple of 16.
static void Widen(const uint16_t* bits, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) Store(LoadBf16(bits + i), out + i);
}

// out [rows][dp] = phi S. wide: S as float32, or null to read the upper plane.
static void ReadState(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                      const float* wide, const float* phi, int64_t phi_row, int rows, float* out) {
  const int vectors = static_cast<int>(layout.padded_dim / kLanes);
  if (wide != nullptr) {
    MultiplyInCache(phi, phi_row, 1, rows, spec.features(), RowsF32{wide, layout.padded_dim},
                    vectors, out, layout.padded_dim, false);
  } else {
    const auto* s = reinterpret_cast<const uint16_t*>(state.s);
    const RowsBf16 upper{
        s, layout.padded_dim, {s + spec.features() * layout.padded_dim, state.near_keys}};
    MultiplyInCache(phi, phi_row, 1, rows, spec.features(), upper, vectors, out, layout.padded_dim,
                    false);
  }
}

// Multiplies rows [first, first + count) of S by `kept` and adds sums [count][dp]; z and z_sums
// alike. With kept = 1 a fused operation has the bits of an addition.
static void AddToState(const AttentionSpec& spec, const HeadLayout& layout, float kept,
                       int64_t first, int count, const float* sums, const float* z_sums,
                       const HeadState& state) {
  const int64_t begin = first * layout.padded_dim, size = count * layout.padded_dim;
  const V kept_v = Set1(kept);
  if (spec.state_format != StateFormat::kBf16) {
    float* s = state.s + begin;
    for (int64_t i = 0; i < size; i += kLanes) {
      Store(Fma(Load(s + i), kept_v, Load(sums + i)), s + i);
    }
  } else {
    auto* upper = reinterpret_cast<uint16_t*>(state.s) + begin;
    uint16_t* lower = upper + spec.features() * layout.padded_dim;
    for (int64_t i = 0; i < size; i += kLanes) {
      StorePlanes(Fma(LoadPlanes(upper + i, lower + i), kept_v, Load(sums + i)), upper + i,
                  lower + i);
    }
  }
  for (int f = 0; f < count; ++f) {
    state.z[first + f] = __builtin_fmaf(state.z[first + f], kept, z_sums[f]);
  }
}

// Number of features that are folded at a time: three rows i of one pair of tiles. Their panel of
// 24 x b floats stays in L1.
constexpr int kFoldFeatures = 24;
// The same for folds with tiles, and for the memory of either.
constexpr int kFoldRows = kTileBlock;

// Computes a feature of every token of the block and returns their sum. product(offset) is the
// feature of a vector of tokens at `offset` in the transposed keys; store(a, b, token) stores the
// features of 32 tokens from `token` on.
template <typename ProductOf, typename Decay, typename StoreTokens>
PS_INLINE float FeatureRow(const HeadLayout& layout, int dim, const ProductOf& product,
                           const Decay& decay, const StoreTokens& store) {
  V sum = Zero();
  for (int64_t token = 0; token < layout.padded_block; token += kKeyPanel) {
    const int64_t panel = token * dim;
    for (int64_t t = 0; t < kKeyPanel; t += 2 * kLanes) {
      const V a = decay(product(panel + t), token + t);
      const V b = decay(product(panel + t + kLanes), token + t + kLanes);
      store(a, b, token + t);
      sum = Add(Add(sum, a), b);
    }
  }
  return ReduceAdd(sum);
}

// A panel of features as float32 rows, and the values of the block as float32 [b][dp].
struct FloatFold {
  static constexpr int kRows = kFoldFeatures;
  const float* values;
  float* panel;

  template <typename ProductOf, typename Decay>
  PS_INLINE float SetRow(const FloatFold& f, const HeadLayout& layout, int dim, int index,
                         const ProductOf& product, const Decay& decay) {
    float* row = f.panel + index * layout.padded_block;
    return FeatureRow(
        layout, dim, product, decay, [row](V a, V b, int64_t token) __attribute__((always_inline)) {
          Store(a, row + token);
          Store(b, row + token + kLanes);
        });
  }
  void Multiply(const AttentionSpec& spec, const HeadLayout& layout, int count, float* sums) const {
    MultiplyInCache(panel, layout.padded_block, 1, count, spec.block,
                    RowsF32{values, layout.padded_dim},
                    static_cast<int>(layout.padded_dim / kLanes), sums, layout.padded_dim, false);
  }
};

#if defined(PS_ISA_VNNI)
// A panel of features split into two bf16, and the values of the block in pairs of tokens,
// [bp / 2][dp][2] (PairFoldValues): operands of tiles.
struct TileFold {
  static constexpr int kRows = kFoldRows;
  const uint32_t* values;
  const float* value_scales;  // kQ8: [bp], factors of the features; else null
  float* panel;               // a split feature has the size of a float
  const TileSession& session;

  template <typename ProductOf, typename Decay>
  PS_INLINE float SetRow(const TileFold& f, const HeadLayout& layout, int dim, int index,
                         const ProductOf& product, const Decay& decay) {
    float* row = f.panel + index * layout.padded_block;
    const float* scales = f.value_scales;
    return FeatureRow(
        layout, dim, product, decay, [=](V a, V b, int64_t token) __attribute__((always_inline)) {
          if (scales != nullptr) {
            a = Mul(a, Load(scales + token));
            b = Mul(b, Load(scales + token + kLanes));
          }
          StoreSplitBf16(a, b, row + token);
        });
  }
  // Rows from `count` on are those of earlier panels, and are not used.
  void Multiply(const AttentionSpec& /*spec*/, const HeadLayout& layout, int /*count*/,
                float* sums) const {
    const int64_t dp = layout.padded_dim, bp = layout.padded_block;
    const TileRows rows{reinterpret_cast<const uint8_t*>(panel), 4 * bp};
    for (int64_t n = 0; n < dp; n += kTileBlock) {
      session.ProductSplit(rows, values + n, dp, bp / (2 * kLanes),
                           static_cast<int>(std::min<int64_t>(kTileBlock, dp - n)), sums + n, dp);
    }
  }
};
#endif

// Folds features into the state, a panel at a time.
template <typename Panel>
struct Fold {
  const AttentionSpec& spec;
  const HeadLayout& layout;
  const HeadState& state;
  Panel panel;
  float kept;  // what remains of the state
  float* sums;
  float z_sums[Panel::kRows] = {};
  int64_t first = 0;  // first feature of the panel
  int count = 0;

  template <typename ProductOf, typename Decay>
  PS_INLINE void Add(Fold& fold, const ProductOf& product, const Decay& decay) {
    fold.z_sums[fold.count] =
        Panel::SetRow(fold.panel, fold.layout, fold.spec.far_dim(), fold.count, product, decay);
    if (++fold.count == Panel::kRows) fold.Flush();
  }
  // Each feature is summed from zero in token order, then added once (docs/numerics.md).
  void Flush() {
    if (count == 0) return;
    panel.Multiply(spec, layout, count, sums);
    AddToState(spec, layout, kept, first, count, sums, z_sums, state);
    first += count;
    count = 0;
  }
};

// Adds the features of a range that begins at a multiple of eight.
template <typename Panel, typename Decay>
static void FoldFeatures(Fold<Panel>& fold, const Range& range, const Decay& decay) {
  const int dim = fold.spec.far_dim();
  const float* keys = fold.state.far_keys;
  fold.first = range.first;
  if (!fold.spec.sketched()) {
    for (int64_t f = range.first; f < range.last; ++f) {
      const float* a = keys + f * kKeyPanel;
      const auto copy = [&](int64_t t) __attribute__((always_inline)) { return Load(a + t); };
      Fold<Panel>::Add(fold, copy, decay);
    }
    fold.Flush();
    return;
  }
  int64_t next = 0;  // first feature of row i of the next pair of tiles
  for (int I = 0; I < dim; I += 8) {
    for (int J = I; J < dim; J += 8) {
      for (int i = I; i < I + 8; ++i) {
        const int64_t first = next;
        next += 8;
        if (first < range.first || first >= range.last) continue;
        for (int j = J; j < J + 8; ++j) {
          const float *a = keys + i * kKeyPanel, *b = keys + j * kKeyPanel;
          const auto multiply = [&](int64_t t) __attribute__((always_inline)) {
            return Mul(Load(a + t), Load(b + t));
          };
          Fold<Panel>::Add(fold, multiply, decay);
        }
      }
    }
  }
  fold.Flush();
}

// Adds a range of features of the full block to the state. scratch: kFoldRows * (bp + dp) floats,
// and bp more with a decay gate; `panel` has its first kFoldRows * bp.
template <typename Panel>
static void FoldBlock(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                      const Panel& panel, const Range& features, float* scratch) {
  float* sums = scratch + kFoldRows * layout.padded_block;
  Fold<Panel> fold{spec, layout, state, panel, /*kept=*/1.0f, sums};
  if (!spec.decay_gate) return FoldFeatures(fold, features, NoDecay());
  float* factors = sums + kFoldRows * layout.padded_dim;
  fold.kept = FoldFactors(state.decay_sums, spec.block, layout.padded_block, factors);
  FoldFeatures(fold, features, FoldDecay{factors});
}

#include "kernels/cpu/isa_end.inc"
