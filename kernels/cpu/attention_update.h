// What changes the state of a head of a recurrent kind: tokens are appended to the block buffer, a
// full block is folded, and what queries read is made and widened. Functions take a range of tokens
// or of features, so that one thread or several do the same work with the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_append.h"
#include "kernels/cpu/attention_decay.h"
#include "kernels/cpu/attention_far.h"
#include "kernels/cpu/attention_far_bytes.h"
#include "kernels/cpu/attention_near_bytes.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/integer_tile.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// Ranges of features meet at multiples of kFeatureUnit, those of tokens at multiples of kTokenUnit:
// two ranges share no pair of rows and no vector of keys.
constexpr int64_t kFeatureUnit = 8;
constexpr int64_t kTokenUnit = kLanes;

// Appends rows [row, row + count) to the block at `offset`. far_keys: null if they are the near
// keys.
template <typename Key, typename Value>
static void AppendToBlock(const HeadRows& rows, int64_t row, int64_t count, int64_t offset,
                          Key* near_keys, float* far_keys, Value* values) {
  const AttentionSpec& spec = rows.spec;
  AppendKeys(rows.NearKey(row), rows.near_key_stride(), count, spec.near_dim(), offset, near_keys);
  if (far_keys != nullptr) {
    AppendKeys(rows.FarKey(row), rows.far_key_stride(), count, spec.far_dim(), offset, far_keys);
  }
  for (int64_t i = 0; i < count; ++i) {
    StoreRow(rows.Value(row + i), spec.head_dim, values + (offset + i) * rows.layout.padded_dim);
  }
}

// Rows of the input are apart, and their first lines arrive late without prefetches.
constexpr int kRowsAhead = 8;

static void PrefetchRow(const float* x, int size) {
  for (int i = 0; i < size; i += kLanes) __builtin_prefetch(x + i);
}

// Appends the keys and values of `run`, whole or in parts.
static void AppendRun(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run) {
  const AttentionSpec& spec = rows.spec;
  float* far_keys = spec.mixed() ? state.far_keys : nullptr;
  if (!spec.narrow_block()) {
    AppendToBlock(rows, run.row, run.count, run.block_offset, state.near_keys, far_keys,
                  state.values);
  } else if (spec.mixed() && spec.byte_copy()) {
    const int dim = spec.near_dim();
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t token = run.block_offset + i;
      PrefetchRow(rows.NearKey(run.row + i + kRowsAhead), dim);
      PrefetchRow(rows.Value(run.row + i + kRowsAhead), spec.head_dim);
      StoreRow(rows.NearKey(run.row + i), dim, Bf16(state.near_keys) + token * dim);
      StoreRow(rows.Value(run.row + i), spec.head_dim,
               Bf16(state.values) + token * rows.layout.padded_dim);
    }
    AppendKeys(rows.FarKey(run.row), rows.far_key_stride(), run.count, spec.far_dim(),
               run.block_offset, far_keys);
  } else if (spec.mixed()) {
    AppendToBlock(rows, run.row, run.count, run.block_offset, Bf16(state.near_keys), far_keys,
                  Bf16(state.values));
  } else {
    AppendToBlock(rows, run.row, run.count, run.block_offset, state.far_keys, far_keys,
                  Bf16(state.values));
  }
  if (spec.byte_copy()) MakeBlockBytes(spec, rows.layout, state, run.block_offset, run.count);
}

// Appends the log decays of `run`, whole: each sum continues the one before it.
static void AppendRunDecay(const HeadRows& rows, const HeadState& state,
                           const SegmentInBlock& run) {
  if (!rows.spec.decay_gate) return;
  AppendDecay(rows.LogDecay(run.row), rows.spec.key_heads(), run.count, run.block_offset,
              state.decay_sums);
}

// Folds a range of features. wide: fold_values of the whole block.
static void FoldRange(const HeadRows& rows, const HeadState& state, const Range& features,
                      const WideHead& wide, const TileScratch& scratch) {
  const bool narrow = rows.spec.narrow_block();
  const auto fold = [&](const auto& panel) {
    FoldBlock(rows.spec, rows.layout, state, panel, features, scratch.fold);
  };
#if defined(PS_ISA_VNNI)
  if (narrow && rows.tiles != TileUnit::kNone) {
    const TileSession session(rows.tiles);
    const auto* pairs = reinterpret_cast<const uint32_t*>(wide.fold_values);
    const float* scales = rows.spec.byte_copy() ? state.value_scales : nullptr;
    return fold(TileFold{pairs, scales, scratch.fold, session});
  }
#endif
  if (rows.spec.byte_copy()) {
    return fold(IntegerFold{state, Words(wide.fold_values), scratch.fold, scratch.words});
  }
  fold(FloatFold{narrow ? wide.fold_values : state.values, scratch.fold});
}

// Widens rows of what queries read of S, unless it is float32.
static void WidenState(const HeadRows& rows, const HeadState& state, const Range& features,
                       const WideHead& wide) {
  const int64_t dp = rows.layout.padded_dim, first = features.first * dp;
  if (rows.spec.byte_copy()) {
    const int64_t size = (features.size() + 1) / 2 * 2 * dp;  // whole pairs of rows
    WidenPairs(state.copy + first, size, Words(wide.state) + first);
  } else if (rows.spec.narrow_block()) {
    Widen(Bf16(state.s) + first, features.size() * dp, wide.state + first);
  }
}

// Widens values of tokens: bf16 ones to float32, bytes in whole pairs to 16-bit integers.
static void WidenValues(const HeadRows& rows, const HeadState& state, const Range& tokens,
                        float* out) {
  const int64_t dp = rows.layout.padded_dim;
  if (rows.spec.byte_copy()) {
    const int64_t first = tokens.first / 2 * 2 * dp, last = (tokens.last + 1) / 2 * 2 * dp;
    return WidenPairs(state.value_bytes + first, last - first, Words(out) + first);
  }
  Widen(Bf16(state.values) + tokens.first * dp, tokens.size() * dp, out + tokens.first * dp);
}

#if defined(PS_ISA_VNNI)
// Writes the integers of the values of tokens as PairFoldValues does, whose pairs they are in.
static void PairFoldBytes(const HeadRows& rows, const HeadState& state, const Range& tokens,
                          uint32_t* out) {
  const int64_t dp = rows.layout.padded_dim, block = rows.spec.block;
  auto* elements = reinterpret_cast<uint16_t*>(out);
  const int64_t first = tokens.first / 2 * 2 * dp, last = (tokens.last + 1) / 2 * 2 * dp;
  for (int64_t i = first; i < last; i += kLanes) {
    StoreBytesAsBf16(state.value_bytes + i, elements + i);
  }
  if (tokens.last == block) std::fill(elements + last, elements + rows.layout.padded_block * dp, 0);
}

// Writes the bf16 values of tokens in pairs, out [bp / 2][dp][2], and zeros after the block's last
// token. Whole pairs: the second value of the last one may be of a token that has not arrived, and
// is written again when it does.
static void PairFoldValues(const HeadRows& rows, const HeadState& state, const Range& tokens,
                           uint32_t* out) {
  if (rows.spec.byte_copy()) return PairFoldBytes(rows, state, tokens, out);
  const int64_t dp = rows.layout.padded_dim, block = rows.spec.block;
  const uint16_t zeros[kLanes] = {};
  const auto at = [&](int64_t token, int64_t i) {
    return token < block ? Bf16(state.values) + token * dp + i : zeros;
  };
  const int64_t last = tokens.last < block ? tokens.last : rows.layout.padded_block;
  for (int64_t t = tokens.first / 2 * 2; t < last; t += 2) {
    for (int64_t i = 0; i < dp; i += kLanes) {
      StoreBf16Pairs(at(t, i), at(t + 1, i), out + t / 2 * dp + i);
    }
  }
}
#endif

// Makes what a fold reads of the values of tokens, unless it reads them as they are.
static void WidenFoldValues(const HeadRows& rows, const HeadState& state, const Range& tokens,
                            const WideHead& wide) {
  if (!rows.spec.narrow_block() || tokens.empty()) return;
#if defined(PS_ISA_VNNI)
  if (rows.tiles != TileUnit::kNone) {
    return PairFoldValues(rows, state, tokens, reinterpret_cast<uint32_t*>(wide.fold_values));
  }
#endif
  WidenValues(rows, state, tokens, wide.fold_values);
}

// Widens the near keys of tokens of the block, in whole vectors.
static void WidenKeys(const HeadRows& rows, const HeadState& state, const Range& tokens,
                      const WideHead& wide) {
  const int64_t dim = rows.spec.near_dim(), pairs = (dim + 1) / 2;
  const int64_t begin = tokens.first / kLanes * kLanes;
  const bool bytes = rows.spec.byte_copy();
  for (int64_t row = 0; row < (bytes ? pairs : dim); ++row) {
    for (int64_t t = begin; t < tokens.last; t += kLanes) {
      if (bytes) {
        const int64_t at = KeyPairIndex(pairs, row, t);
        WidenPairs(state.key_bytes + at, 2 * kLanes, Words(wide.keys) + at);
      } else {
        const int64_t at = KeyIndex(dim, row, t);
        Widen(Bf16(state.near_keys) + at, kLanes, wide.keys + at);
      }
    }
  }
}

// Widens what queries read of tokens of the block, unless it is float32.
static void WidenTokens(const HeadRows& rows, const HeadState& state, const Range& tokens,
                        const WideHead& wide) {
  if (!rows.spec.narrow_block() || tokens.empty()) return;
  if (rows.spec.mixed()) WidenKeys(rows, state, tokens, wide);
  WidenValues(rows, state, tokens, wide.values);
}

#include "kernels/cpu/isa_end.inc"
