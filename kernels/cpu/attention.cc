// The attention op: a task is one head of one segment, from the segment's first token to its last;
// nothing is shared between tasks, so any number of threads gives the same bits.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/state.h"

// These build on one another, in this order.
// clang-format off
#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_far.h"
// clang-format on

namespace {

// A block with at least this many queries widens a bf16 state once in place of in every tile.
constexpr int kWidenQueries = 2 * kQueryTile;

// One head's view of a segment's rows in the packed batch.
struct HeadRows {
  const AttentionSpec& spec;
  const HeadLayout& layout;
  const AttentionInput& input;
  int head;
  int64_t first_row;
  float* out;

  const float* Near(const float* base, int64_t row) const {
    return base + ((first_row + row) * spec.heads + head) * spec.near_dim();
  }
  const float* Far(const float* base, int64_t row) const {
    return base + ((first_row + row) * spec.heads + head) * spec.far_dim();
  }
  const float* Value(int64_t row) const {
    return input.v + (first_row + row) * input.v_stride +
           static_cast<int64_t>(head) * spec.head_dim;
  }
  float* Out(int64_t row) const {
    return out + ((first_row + row) * spec.heads + head) * spec.head_dim;
  }
  int64_t near_stride() const { return static_cast<int64_t>(spec.heads) * spec.near_dim(); }
};

// Column `token` of transposed keys [dim][row_size].
void StoreColumn(const float* key, int dim, int64_t row_size, int64_t token, float* keys) {
  for (int i = 0; i < dim; ++i) keys[i * row_size + token] = key[i];
}

// Appends rows [row, row + count) as tokens `place`... of the block.
void AppendToBlock(const HeadRows& rows, int64_t row, int64_t count, int64_t place,
                   float* near_keys, float* far_keys, float* values) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block;
  for (int64_t i = 0; i < count; ++i) {
    StoreColumn(rows.Near(rows.input.near_k, row + i), spec.near_dim(), bp, place + i, near_keys);
    if (far_keys != near_keys)
      StoreColumn(rows.Far(rows.input.far_k, row + i), spec.far_dim(), bp, place + i, far_keys);
    std::copy_n(rows.Value(row + i), spec.head_dim, values + (place + i) * rows.layout.padded_dim);
  }
}

void WriteOutput(const HeadRows& rows, int64_t row, int count, const float* sums,
                 const float* denominators) {
  for (int m = 0; m < count; ++m) {
    const float* sum = sums + m * rows.layout.padded_dim;
    float* out = rows.Out(row + m);
    const float denominator = rows.spec.stabilizer + denominators[m];
    for (int i = 0; i < rows.spec.head_dim; ++i) out[i] = sum[i] / denominator;
  }
}

struct RecurrentScratch {
  float *phi, *sums, *scores, *wide, *fold;

  static int64_t Floats(const AttentionSpec& spec, const HeadLayout& layout) {
    const int64_t features = spec.features();
    return kQueryTile * (features + layout.padded_dim + layout.padded_block) +
           features * layout.padded_dim + kFoldFeatures * (layout.padded_block + layout.padded_dim);
  }
  RecurrentScratch(const AttentionSpec& spec, const HeadLayout& layout, float* memory) {
    const int64_t features = spec.features();
    wide = memory;
    phi = wide + features * layout.padded_dim;
    sums = phi + kQueryTile * features;
    scores = sums + kQueryTile * layout.padded_dim;
    fold = scores + kQueryTile * layout.padded_block;
  }
};

// Far part of a tile: sums [count][dp] and denominators.
void FarTile(const HeadRows& rows, const HeadState& state, const float* wide, int64_t row,
             int count, const RecurrentScratch& scratch, float* denominators) {
  const AttentionSpec& spec = rows.spec;
  const int64_t features = spec.features();
  for (int m = 0; m < count; ++m) {
    const float* q = rows.Far(rows.input.far_q, row + m);
    float* phi = scratch.phi + m * features;
    if (spec.sketched()) {
      SymmetricQueryFeatures(q, spec.far_dim(), phi);
    } else {
      std::copy_n(q, features, phi);
    }
    denominators[m] = FeatureDot(phi, state.z, features);
  }
  ReadState(spec, rows.layout, state, wide, scratch.phi, features, count, scratch.sums);
}

// Rows [row, row + count) whose tokens stand at places `place`... of the current block, which holds
// them already.
void BlockQueries(const HeadRows& rows, const HeadState& state, int64_t row, int64_t count,
                  int64_t place, bool has_past, const RecurrentScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const HeadLayout& layout = rows.layout;
  const NearWeight weight = NearWeight::Of(spec);
  const NearBlock block{state.near_keys, layout.padded_block, state.values, layout.padded_dim};
  const float* wide = spec.state_format == StateFormat::kF32 ? state.s : nullptr;
  if (has_past && wide == nullptr && count >= kWidenQueries) {
    WidenState(reinterpret_cast<const uint16_t*>(state.s), spec.features() * layout.padded_dim,
               scratch.wide);
    wide = scratch.wide;
  }
  for (int64_t i = 0; i < count; i += kQueryTile) {
    const int tile = static_cast<int>(std::min<int64_t>(kQueryTile, count - i));
    float denominators[kQueryTile] = {};
    if (has_past) {
      FarTile(rows, state, wide, row + i, tile, scratch, denominators);
    } else {
      std::fill_n(scratch.sums, tile * layout.padded_dim, 0.0f);
    }
    const int64_t first = place + i;
    const QueryTile queries{rows.Near(rows.input.near_q, row + i), rows.near_stride(), tile,
                            spec.near_dim()};
    Scores(queries, block, first + tile, scratch.scores);
    for (int m = 0; m < tile; ++m) {
      V lanes = Zero();
      WeighRow(weight, 0.0f, Limit(first, m, spec.block), scratch.scores + m * layout.padded_block,
               &lanes);
      denominators[m] += ReduceAdd(lanes);
    }
    AddValues(tile, first, spec.block, scratch.scores, block,
              static_cast<int>(layout.padded_dim / kLanes), scratch.sums);
    WriteOutput(rows, row + i, tile, scratch.sums, denominators);
  }
}

void RecurrentHead(const HeadRows& rows, int layer, const AttentionSegment& segment,
                   float* memory) {
  const AttentionSpec& spec = rows.spec;
  const RecurrentScratch scratch(spec, rows.layout, memory);
  const HeadState state = static_cast<RecurrentState*>(segment.state)->Head(layer, rows.head);
  const int64_t position = segment.state->position();
  for (int64_t row = 0; row < segment.rows;) {
    const int64_t token = position + row;
    const int64_t place = token % spec.block;
    const bool has_past = token >= spec.block;
    if (place == 0 && has_past) FoldBlock(spec, rows.layout, state, scratch.fold);
    const int64_t count = std::min<int64_t>(segment.rows - row, spec.block - place);
    AppendToBlock(rows, row, count, place, state.near_keys, state.far_keys, state.values);
    BlockQueries(rows, state, row, count, place, has_past, scratch);
    row += count;
  }
}

// softmax and polynomial: a tile of queries against every block up to its own.
struct KvHead {
  const HeadRows& rows;
  KvState* state;
  int layer;
  const NearWeight weight;

  NearBlock Block(int64_t index) const {
    return {state->Keys(layer, index, rows.head), rows.layout.padded_block,
            state->Values(layer, index, rows.head), rows.layout.padded_dim};
  }
  QueryTile Queries(int64_t row, int tile) const {
    return {rows.Near(rows.input.near_q, row), rows.near_stride(), tile, rows.spec.near_dim()};
  }

  // The largest score of every row: exact, whatever the order.
  void FindTops(int64_t row, int tile, int64_t token, float* scores, float* tops) const {
    const int64_t size = rows.spec.block;
    std::fill_n(tops, tile, -std::numeric_limits<float>::infinity());
    for (int64_t index = 0; index <= (token + tile - 1) / size; ++index) {
      const int64_t first = token - index * size;
      Scores(Queries(row, tile), Block(index), Limit(first, tile - 1, size), scores);
      for (int m = 0; m < tile; ++m) {
        const float* score = scores + m * rows.layout.padded_block;
        for (int64_t s = 0; s < Limit(first, m, size); ++s) tops[m] = std::max(tops[m], score[s]);
      }
    }
  }

  void Tile(int64_t row, int tile, int64_t token, float* scores, float* sums) const {
    const int64_t size = rows.spec.block;
    float tops[kQueryTile] = {};
    V lanes[kQueryTile];
    for (V& lane : lanes) lane = Zero();
    if (weight.kind == AttentionKind::kSoftmax) FindTops(row, tile, token, scores, tops);
    std::fill_n(sums, tile * rows.layout.padded_dim, 0.0f);
    for (int64_t index = 0; index <= (token + tile - 1) / size; ++index) {
      const int64_t first = token - index * size;
      const NearBlock block = Block(index);
      Scores(Queries(row, tile), block, Limit(first, tile - 1, size), scores);
      for (int m = 0; m < tile; ++m) {
        WeighRow(weight, tops[m], Limit(first, m, size), scores + m * rows.layout.padded_block,
                 &lanes[m]);
      }
      AddValues(tile, first, size, scores, block, static_cast<int>(rows.layout.padded_dim / kLanes),
                sums);
    }
    float denominators[kQueryTile];
    for (int m = 0; m < tile; ++m) denominators[m] = ReduceAdd(lanes[m]);
    WriteOutput(rows, row, tile, sums, denominators);
  }
};

void CachedHead(const HeadRows& rows, int layer, const AttentionSegment& segment, float* memory) {
  auto* state = static_cast<KvState*>(segment.state);
  const int64_t position = state->position();
  const int64_t size = rows.spec.block;
  for (int64_t row = 0; row < segment.rows;) {
    const int64_t token = position + row;
    const int64_t count = std::min<int64_t>(segment.rows - row, size - token % size);
    float* keys = state->Keys(layer, token / size, rows.head);
    AppendToBlock(rows, row, count, token % size, keys, keys,
                  state->Values(layer, token / size, rows.head));
    row += count;
  }
  const KvHead head{rows, state, layer, NearWeight::Of(rows.spec)};
  for (int64_t row = 0; row < segment.rows;) {
    // A tile stays inside one block, so that its rows' places in a block depend on positions only.
    const int64_t token = position + row;
    const int tile =
        static_cast<int>(std::min<int64_t>({kQueryTile, segment.rows - row, size - token % size}));
    head.Tile(row, tile, token, memory, memory + kQueryTile * rows.layout.padded_block);
    row += tile;
  }
}

}  // namespace

void Attention(Context& ctx, const AttentionSpec& spec, int layer,
               std::span<const AttentionSegment> segments, const AttentionInput& input,
               float* out) {
  const HeadLayout layout(spec);
  if (spec.kv_cache()) {
    for (const AttentionSegment& segment : segments) {
      static_cast<KvState*>(segment.state)
          ->Reserve(layer, segment.state->position() + segment.rows);
    }
  }
  const int64_t tasks = static_cast<int64_t>(segments.size()) * spec.heads;
  ctx.pool().ParallelFor(tasks, [&](int64_t task, int thread) {
    const AttentionSegment& segment = segments[task / spec.heads];
    const HeadRows rows{spec, layout, input, static_cast<int>(task % spec.heads), segment.first_row,
                        out};
    if (spec.kv_cache()) {
      float* memory = ctx.Scratch(thread, kQueryTile * (layout.padded_block + layout.padded_dim));
      CachedHead(rows, layer, segment, memory);
    } else {
      float* memory = ctx.Scratch(thread, RecurrentScratch::Floats(spec, layout));
      RecurrentHead(rows, layer, segment, memory);
    }
  });
}

#include "kernels/cpu/isa_end.h"
