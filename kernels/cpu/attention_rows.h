// The rows of a segment as attention reads and writes them for one head, and a thread's memory for
// them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_far.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_prefetch.h"
#include "kernels/cpu/integer_tile.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// The rows of a segment in the batch, for one head of keys and values.
struct HeadRows {
  const AttentionSpec& spec;
  const HeadLayout& layout;
  const AttentionInput& input;
  int head;
  int64_t first_row;
  float* out;
  const void* next;  // the address that is read after this head
  TileUnit tiles;    // what folds of narrow blocks are computed with; kNone: float32 multiply-adds
  LinePrefetcher* prefetcher = nullptr;  // kQ8, what is read as it is stored: of the next head

  const float* NearQuery(int64_t row, int query_head) const {
    return input.near_q + ((first_row + row) * spec.heads + query_head) * spec.near_dim();
  }
  const float* NearKey(int64_t row) const {
    return input.near_k + ((first_row + row) * spec.key_heads() + head) * spec.near_dim();
  }
  const float* FarQuery(int64_t row, int query_head) const {
    return input.far_q + ((first_row + row) * spec.heads + query_head) * spec.far_dim();
  }
  const float* FarKey(int64_t row) const {
    return input.far_k + ((first_row + row) * spec.key_heads() + head) * spec.far_dim();
  }
  const float* Value(int64_t row) const {
    return input.v + (first_row + row) * input.v_stride +
           static_cast<int64_t>(head) * spec.head_dim;
  }
  const float* LogDecay(int64_t row) const {
    return input.log_decay + (first_row + row) * spec.key_heads() + head;
  }
  // Of the P of a head of queries; null unless the kind is polynomial_square.
  const float* Coefficients(int query_head) const {
    if (spec.kind != AttentionKind::kPolynomialSquare) return nullptr;
    return input.coefficients + static_cast<int64_t>(query_head) * (spec.power + 1);
  }
  float* Out(int64_t row, int query_head) const {
    return out + ((first_row + row) * spec.heads + query_head) * spec.head_dim;
  }
  // Requires AttentionInput::far_mass.
  float* FarMass(int64_t row, int query_head) const {
    return input.far_mass + (first_row + row) * spec.heads + query_head;
  }
  int64_t near_query_stride() const { return static_cast<int64_t>(spec.heads) * spec.near_dim(); }
  int64_t near_key_stride() const { return int64_t{spec.key_heads()} * spec.near_dim(); }
  int64_t far_query_stride() const { return static_cast<int64_t>(spec.heads) * spec.far_dim(); }
  int64_t far_key_stride() const { return int64_t{spec.key_heads()} * spec.far_dim(); }
};

static RecurrentLayer& RecurrentOf(const Segment& segment, int layer) {
  return static_cast<CpuState*>(segment.state)->Recurrent(layer);
}

static KvLayer& CacheOf(const Segment& segment, int layer) {
  return static_cast<CpuState*>(segment.state)->Kv(layer);
}

static void WriteOutput(const HeadRows& rows, int64_t row, int query_head, const float* sum,
                        float denominator) {
  float* out = rows.Out(row, query_head);
  denominator = rows.spec.stabilizer + denominator;
  for (int i = 0; i < rows.spec.head_dim; ++i) out[i] = sum[i] / denominator;
}

// The rows of a segment that are in one block.
struct SegmentInBlock {
  int64_t row;  // first row
  int64_t count;
  int64_t block_offset;  // of the first row's token
  bool has_past;         // whether there is a far state

  // The rows of the tokens [first, last) of the block, which are among these.
  SegmentInBlock Tokens(const Range& tokens) const {
    return {row + tokens.first - block_offset, tokens.size(), tokens.first, has_past};
  }
  // Rows [first, last) of these.
  SegmentInBlock Rows(const Range& rows) const {
    return {row + rows.first, rows.size(), block_offset + rows.first, has_past};
  }
  Range tokens() const { return {block_offset, block_offset + count}; }
  // Whether the block before these rows is folded first.
  bool folds() const { return has_past && block_offset == 0; }
};

// The rows from `row` on, of a segment of `rows` rows after `position` tokens, that are in one
// block.
static SegmentInBlock RowsInBlock(const AttentionSpec& spec, int64_t position, int64_t row,
                                  int64_t rows) {
  const int64_t token = position + row, offset = token % spec.block;
  return {row, std::min<int64_t>(rows - row, spec.block - offset), offset, token >= spec.block};
}

// Queries that are computed at a time: those of `tokens` tokens from `row` on, in `heads`
// neighbouring heads of the group that reads the kv head. They read it once.
struct GroupTile {
  int64_t row;
  int tokens;
  int first_head, heads;

  int rows() const { return tokens * heads; }
};

// How the queries of a kv head are cut into such tiles.
struct GroupTiling {
  int heads, tokens;  // of a tile, at most

  static GroupTiling Of(const AttentionSpec& spec) {
    const int group = spec.query_group(), parts = (group + kQueryTile - 1) / kQueryTile;
    const int heads = (group + parts - 1) / parts;
    return {heads, kQueryTile / heads};
  }
};

// The queries of a tile, token by token: where they lie, or copied to `scratch` if no stride
// reaches all. first: of the tile's first token and head; those of the next token are `token_row`
// floats apart.
static QueryTile TileQueries(const GroupTile& tile, const float* first, int64_t token_row, int dim,
                             float* scratch) {
  if (tile.heads == 1) return {first, token_row, tile.tokens, dim};
  if (tile.tokens == 1) return {first, dim, tile.heads, dim};
  const int64_t floats = int64_t{tile.heads} * dim;
  for (int t = 0; t < tile.tokens; ++t) {
    std::copy_n(first + t * token_row, floats, scratch + t * floats);
  }
  return {scratch, dim, tile.rows(), dim};
}

// Hands out consecutive parts of an array of floats. With null memory, only counts them.
struct FloatParts {
  float* memory;
  int64_t size = 0;

  float* Next(int64_t floats) {
    float* part = memory == nullptr ? nullptr : memory + size;
    size += floats;
    return part;
  }
};

// What queries and a fold read repeatedly of a head whose state is narrower than float32, widened
// once: to float32, or, what queries read under kQ8, to 16-bit integers in pairs. Empty under kF32.
struct WideHead {
  float *state, *keys, *values;
  // Values of the fold: `values`, or with tiles pairs (PairFoldValues).
  float* fold_values;

  static WideHead In(const AttentionSpec& spec, const HeadLayout& layout, TileUnit tiles,
                     FloatParts* parts) {
    if (!spec.narrow_block()) return {};
    const int64_t bp = layout.padded_block, dp = layout.padded_dim;
    WideHead wide{parts->Next((spec.features() + 1) * dp),
                  parts->Next(spec.mixed() ? (spec.near_dim() + 1) * bp : 0),
                  parts->Next((spec.block + 1) * dp), nullptr};
    wide.fold_values = tiles != TileUnit::kNone ? parts->Next(bp / 2 * dp) : wide.values;
    return wide;
  }
};

// A thread's memory for a tile of queries, and for a panel of a fold.
struct TileScratch {
  float *phi, *sums, *scores, *fold;
  float* queries;     // of a tile, copied; with grouped queries
  IntegerRows words;  // byte_copy(): features, queries or weights as integers

  static TileScratch In(const AttentionSpec& spec, const HeadLayout& layout, FloatParts* parts) {
    const int64_t features = spec.features(), bp = layout.padded_block, dp = layout.padded_dim;
    TileScratch scratch{
        parts->Next(kQueryTile * RoundUpToLanes(features)),
        parts->Next(kQueryTile * dp),
        parts->Next(kQueryTile * bp),
        parts->Next(kFoldRows * (bp + dp) + (spec.decay_gate ? bp : 0)),
        parts->Next(spec.query_group() > 1 ? kQueryTile * std::max(spec.near_dim(), spec.far_dim())
                                           : 0),
        {},
    };
    if (!spec.byte_copy()) return scratch;
    IntegerRows& words = scratch.words;
    words.stride = std::max({RoundUpToLanes(features), RoundUpToLanes(spec.near_dim()), bp});
    words.scales = parts->Next(kLanes);
    words.words = reinterpret_cast<int16_t*>(parts->Next(kQueryTile * words.stride / 2));
    return scratch;
  }
};

#include "kernels/cpu/isa_end.inc"
