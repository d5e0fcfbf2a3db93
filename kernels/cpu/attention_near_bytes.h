// The near part of states that are read at one byte (StateFormat::kQ8): keys and values of the
// block as 8-bit integers with one scale for each token, made from the bf16 ones of the block
// buffer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/half.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_prefetch.h"
#include "kernels/cpu/integer_tile.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"
#include "kernels/quantize.h"

#include "kernels/cpu/isa_begin.inc"

PS_INLINE BytePairRows RowsOf(const int8_t* data, int64_t stride, LinePrefetcher* prefetcher) {
  return {data, stride, prefetcher};
}
PS_INLINE WordPairRows RowsOf(const int16_t* data, int64_t stride, LinePrefetcher* /*prefetcher*/) {
  return {data, stride};
}

// Transposed keys of `pairs` pairs of rows in panels (state.h), as an operand of MultiplyIntegers.
template <typename Element>
struct KeyPairPanels {
  const Element* data;
  int64_t pairs;
  LinePrefetcher* prefetcher;
  auto Columns(int64_t first) const {
    return RowsOf(data + KeyPairIndex(pairs, 0, first), 2 * kKeyPanel, prefetcher);
  }
};

// The keys of unmixed kinds are the far keys, float32.
struct FloatKeys {
  KeyPanels<float> panels;
};

template <typename Element>
struct IntegerKeys {
  KeyPairPanels<Element> panels;
  const float* scales;
};

// One block for one head. Element: int8_t, or int16_t after it was widened.
template <typename Keys, typename Element>
struct ByteBlock {
  Keys keys;
  int64_t scores_row;
  const Element* values;  // pairs of tokens, [values_row][2]
  const float* value_scales;
  int64_t values_row;
  IntegerRows words;           // scratch
  LinePrefetcher* prefetcher;  // if Element is int8_t
};

template <typename Element>
static void Scores(const QueryTile& t, const ByteBlock<FloatKeys, Element>& block, int64_t tokens,
                   float* scores) {
  Scores(t, NearBlock<float, float>{block.keys.panels, block.scores_row, nullptr, block.values_row},
         tokens, scores);
}

template <typename Element>
static void Scores(const QueryTile& t, const ByteBlock<IntegerKeys<Element>, Element>& block,
                   int64_t tokens, float* scores) {
  const IntegerRows& words = block.words;
  for (int m = 0; m < t.rows; ++m) {
    words.scales[m] =
        RoundToWords(t.q + m * t.q_row, t.dim, words.words + m * words.stride, block.prefetcher);
  }
  const int vectors = static_cast<int>((tokens + kLanes - 1) / kLanes);
  MultiplyIntegers(words, t.rows, block.keys.panels.pairs, block.keys.panels, vectors,
                   {scores, block.scores_row, block.keys.scales, /*accumulate=*/false});
}

// As in attention_near.h; the weights are overwritten. A token after a row's last one enters the
// row as an integer times zero, which is exactly zero whatever the buffer holds there.
template <typename Keys, typename Element>
static void AddValues(int rows, int64_t first, int64_t block_size, float* weights,
                      const ByteBlock<Keys, Element>& block, int vectors, float* out, int heads) {
  const auto limit = [&](int m) { return Limit(first, m / heads, block_size); };
  const int64_t last = limit(rows - 1);
  const IntegerRows& words = block.words;
  alignas(64) float magnitudes[kLanes] = {};
  for (int m = 0; m < rows; ++m) {
    magnitudes[m] =
        ScaleBy(block.value_scales, limit(m), weights + m * block.scores_row, block.prefetcher);
  }
  const auto size = [&](int m) { return RoundUpToLanes(limit(m)); };
  RoundRows(weights, block.scores_row, rows, size, magnitudes, words);
  for (int m = 0; m < rows; ++m) {
    int16_t* integers = words.words + m * words.stride;
    std::fill(integers + size(m), integers + RoundUpToLanes(last), int16_t{0});
  }
  const auto values = RowsOf(block.values, 2 * block.values_row, block.prefetcher);
  MultiplyIntegers(words, rows, (last + 1) / 2, values, vectors,
                   {out, block.values_row, nullptr, /*accumulate=*/true});
}

// Makes the integers of tokens [offset, offset + count) from the bf16 ones of the block buffer.
static void MakeBlockBytes(const AttentionSpec& spec, const HeadLayout& layout,
                           const HeadState& state, int64_t offset, int64_t count) {
  const int64_t dim = spec.near_dim(), dp = layout.padded_dim, pairs = (dim + 1) / 2;
  const auto* values = reinterpret_cast<const uint16_t*>(state.values);
  const auto scale_of = [](const uint16_t* x, int64_t size) {
    uint32_t largest = 0;  // as bits
    for (int64_t i = 0; i < size; ++i) largest = std::max(largest, x[i] & 0x7fffu);
    return QuantScale::Of(Bf16ToFloat(static_cast<uint16_t>(largest)));
  };
  const auto* keys = reinterpret_cast<const uint16_t*>(state.near_keys);
  for (int64_t t = offset; spec.mixed() && t < offset + count; ++t) {
    const uint16_t* key = keys + t * dim;
    const QuantScale scale = scale_of(key, dim);
    state.key_scales[t] = scale.scale;
    int8_t* column = state.key_bytes + KeyPairIndex(pairs, 0, t);
    for (int64_t i = 0; i < dim; i += kLanes) {
      alignas(16) int8_t bytes[kLanes];
      StoreSignedBytes(Mul(LoadBf16(key + i), Set1(scale.inverse)), bytes);
      if (i + kLanes > dim) std::fill(bytes + (dim - i), bytes + kLanes, int8_t{0});
      for (int64_t j = 0; j < kLanes && i + j < dim; j += 2) {
        __builtin_memcpy(column + (i + j) * kKeyPanel, bytes + j, 2);
      }
    }
  }
  for (int64_t t = offset / 2 * 2; t < offset + count; t += 2) {
    const bool second = t + 1 < offset + count;
    const uint16_t* row = values + t * dp;
    const QuantScale a = scale_of(row, dp);
    const QuantScale b = second ? scale_of(row + dp, dp) : QuantScale{0.0f, 0.0f};
    state.value_scales[t] = a.scale;
    if (second) state.value_scales[t + 1] = b.scale;
    for (int64_t c = 0; c < dp; c += kLanes) {
      const V x = Mul(LoadBf16(row + c), Set1(a.inverse));
      const V y = second ? Mul(LoadBf16(row + dp + c), Set1(b.inverse)) : Zero();
      StoreBytePairs(x, y, state.value_bytes + t * dp + 2 * c);
    }
  }
}

#include "kernels/cpu/isa_end.inc"
