// Queries of a recurrent kind: tiles of them read the far state and the block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_decay.h"
#include "kernels/cpu/attention_far.h"
#include "kernels/cpu/attention_far_bytes.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_near_bytes.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// From this number of queries on, 16-bit blocks and states are widened first. The bits are the
// same.
constexpr int kWidenQueries = 2 * kQueryTile;

// Computes the far part of a tile of queries: scratch.sums [rows][dp] and denominators [rows].
static void FarTile(const HeadRows& rows, const HeadState& state, const float* wide,
                    const GroupTile& tile, const TileScratch& scratch, float* denominators) {
  const AttentionSpec& spec = rows.spec;
  const QueryTile queries = TileQueries(tile, rows.FarQuery(tile.row, tile.first_head),
                                        rows.far_query_stride(), spec.far_dim(), scratch.queries);
  if (spec.byte_copy()) {
    return ReadCopy(spec, rows.layout, state, reinterpret_cast<const int16_t*>(wide), queries.q,
                    queries.q_row, queries.rows, scratch.phi, scratch.words, rows.prefetcher,
                    scratch.sums, denominators);
  }
  const int64_t features = spec.features();
  for (int m = 0; m < queries.rows; ++m) {
    const float* q = queries.q + m * queries.q_row;
    float* phi = scratch.phi + m * features;
    if (spec.sketched()) {
      ForSymmetricFeatures(
          q, spec.far_dim(), [&](V value, int64_t f) __attribute__((always_inline)) {
            Store(value, phi + f);
          });
    } else {
      std::copy_n(q, features, phi);
    }
  }
  FeatureDots(scratch.phi, queries.rows, state.z, features, denominators);
  ReadState(spec, rows.layout, state, wide, scratch.phi, features, queries.rows, scratch.sums);
}

// Turns the scores of the token at `offset` of its block into weights and returns their sum.
static float WeighNearRow(const NearWeight& weight, const HeadState& state, int64_t offset,
                          int64_t limit, float* scores) {
  V lanes = Zero();
  if (state.decay_sums == nullptr) {
    WeighRow(weight, NoDecay(), 0.0f, limit, scores, &lanes);
  } else {
    const NearDecay decay{Set1(state.decay_sums[offset]), state.decay_sums};
    WeighRow(weight, decay, 0.0f, limit, scores, &lanes);
  }
  return ReduceAdd(lanes);
}

// Computes a tile of queries, whose first token is at `first` of the block. has_past: whether there
// is a far state. wide: what is read of S, widened to float32 (kQ8: to 16-bit integers), or null to
// read it as it is.
template <typename Block>
static void BlockTile(const HeadRows& rows, const HeadState& state, const GroupTile& tile,
                      int64_t first, bool has_past, const Block& block, const float* wide,
                      const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t dp = rows.layout.padded_dim, scores_row = rows.layout.padded_block;
  const NearWeight weight = NearWeight::Of(spec);
  float denominators[kQueryTile] = {};
  if (has_past) {
    FarTile(rows, state, wide, tile, scratch, denominators);
  } else {
    std::fill_n(scratch.sums, tile.rows() * dp, 0.0f);
  }
  if (has_past && spec.decay_gate) {
    DecayFarPart(state.decay_sums + first, tile.rows(), tile.heads, scratch.sums, dp, denominators);
  }
  const bool far_mass = rows.input.far_mass != nullptr;
  const auto far_mass_of = [&](int m) {
    return rows.FarMass(tile.row + m / tile.heads, tile.first_head + m % tile.heads);
  };
  for (int m = 0; far_mass && m < tile.rows(); ++m) *far_mass_of(m) = denominators[m];
  const QueryTile queries = TileQueries(tile, rows.NearQuery(tile.row, tile.first_head),
                                        rows.near_query_stride(), spec.near_dim(), scratch.queries);
  Scores(queries, block, first + tile.tokens, scratch.scores);
  for (int m = 0; m < tile.rows(); ++m) {
    const int token = m / tile.heads;
    denominators[m] += WeighNearRow(weight, state, first + token, Limit(first, token, spec.block),
                                    scratch.scores + m * scores_row);
  }
  AddValues(tile.rows(), first, spec.block, scratch.scores, block, static_cast<int>(dp / kLanes),
            scratch.sums, tile.heads);
  for (int m = 0; m < tile.rows(); ++m) {
    WriteOutput(rows, tile.row + m / tile.heads, tile.first_head + m % tile.heads,
                scratch.sums + m * dp, denominators[m]);
    if (far_mass) *far_mass_of(m) /= spec.stabilizer + denominators[m];
  }
}

// Computes the queries of `run` in all heads that read the kv head, tile by tile.
template <typename Block>
static void BlockQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                         const Block& block, const float* wide, const TileScratch& scratch) {
  const GroupTiling tiling = GroupTiling::Of(rows.spec);
  const int group = rows.spec.query_group(), end = (rows.head + 1) * group;
  for (int64_t i = 0; i < run.count; i += tiling.tokens) {
    const int tokens = static_cast<int>(std::min<int64_t>(tiling.tokens, run.count - i));
    for (int head = rows.head * group; head < end; head += tiling.heads) {
      const GroupTile tile{run.row + i, tokens, head, std::min(tiling.heads, end - head)};
      BlockTile(rows, state, tile, run.block_offset + i, run.has_past, block, wide, scratch);
    }
  }
}

PS_INLINE uint16_t* Bf16(float* data) { return reinterpret_cast<uint16_t*>(data); }
PS_INLINE int16_t* Words(float* data) { return reinterpret_cast<int16_t*>(data); }

// Reads the bf16 values, and near keys of mixed kinds, of the block.
static void Bf16Queries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                        const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
  const int64_t tokens = run.block_offset + run.count;
  const uint16_t* values = Bf16(state.values);
  const Readahead after_values{values + tokens * dp, rows.next};
  if (spec.mixed()) {
    const uint16_t* keys = Bf16(state.near_keys);
    const int64_t panels = (tokens + kKeyPanel - 1) / kKeyPanel;
    const Readahead after_keys{keys + panels * spec.near_dim() * kKeyPanel, values};
    const NearBlock<uint16_t, uint16_t> block{
        {keys, spec.near_dim(), after_keys}, bp, values, dp, after_values};
    BlockQueries(rows, state, run, block, nullptr, scratch);
  } else {
    const NearBlock<float, uint16_t> block{
        {state.far_keys, spec.near_dim()}, bp, values, dp, after_values};
    BlockQueries(rows, state, run, block, nullptr, scratch);
  }
}

// Element: int8_t, or int16_t for widened ones.
template <typename Element>
static void ByteBlockQueries(const HeadRows& rows, const HeadState& state,
                             const SegmentInBlock& run, const Element* keys, const Element* values,
                             const float* wide, const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
  if (!spec.mixed()) {
    const FloatKeys far_keys{{state.far_keys, spec.near_dim()}};
    const ByteBlock<FloatKeys, Element> block{
        far_keys, bp, values, state.value_scales, dp, scratch.words, rows.prefetcher};
    return BlockQueries(rows, state, run, block, wide, scratch);
  }
  const int64_t pairs = (spec.near_dim() + 1) / 2;
  const IntegerKeys<Element> near_keys{{keys, pairs, rows.prefetcher}, state.key_scales};
  const ByteBlock<IntegerKeys<Element>, Element> block{
      near_keys, bp, values, state.value_scales, dp, scratch.words, rows.prefetcher};
  BlockQueries(rows, state, run, block, wide, scratch);
}

// Computes the queries of `run` from the state as it is stored.
static void NarrowQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                          const TileScratch& scratch) {
  if (!rows.spec.byte_copy()) return Bf16Queries(rows, state, run, scratch);
  ByteBlockQueries(rows, state, run, state.key_bytes, state.value_bytes, nullptr, scratch);
}

// The same, with the same bits, from what WidenState and WidenTokens have widened.
static void WideQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                        const WideHead& wide, const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  if (spec.byte_copy()) {
    return ByteBlockQueries<int16_t>(rows, state, run, Words(wide.keys), Words(wide.values),
                                     wide.state, scratch);
  }
  const bool narrow = spec.narrow_block();
  const float* keys = narrow && spec.mixed() ? wide.keys : state.near_keys;
  const float* values = narrow ? wide.values : state.values;
  const NearBlock<float, float> block{
      {keys, spec.near_dim()}, rows.layout.padded_block, values, rows.layout.padded_dim};
  BlockQueries(rows, state, run, block, narrow ? wide.state : state.s, scratch);
}

#include "kernels/cpu/isa_end.inc"
