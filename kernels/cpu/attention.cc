// The attention op. A task is one head of one segment, from the segment's first token to its last.
// Tasks share nothing, so any number of threads yields the same bits.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/backend.h"
#include "kernels/quantize.h"

// These build on one another, in this order.
// clang-format off
#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/attention_append.h"
#include "kernels/cpu/attention_decay.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_far.h"
#include "kernels/cpu/integer_tile.h"
#include "kernels/cpu/attention_far_bytes.h"
#include "kernels/cpu/attention_near_bytes.h"
// clang-format on

namespace {

// The rows of a segment in the batch, for one head.
struct HeadRows {
  const AttentionSpec& spec;
  const HeadLayout& layout;
  const AttentionInput& input;
  int head;
  int64_t first_row;
  float* out;
  const void* next;  // the address that is read after this head

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
  const float* LogDecay(int64_t row) const {
    return input.log_decay + (first_row + row) * spec.heads + head;
  }
  float* Out(int64_t row) const {
    return out + ((first_row + row) * spec.heads + head) * spec.head_dim;
  }
  int64_t near_stride() const { return static_cast<int64_t>(spec.heads) * spec.near_dim(); }
  int64_t far_stride() const { return static_cast<int64_t>(spec.heads) * spec.far_dim(); }
};

void WriteOutput(const HeadRows& rows, int64_t row, int count, const float* sums,
                 const float* denominators) {
  for (int m = 0; m < count; ++m) {
    const float* sum = sums + m * rows.layout.padded_dim;
    float* out = rows.Out(row + m);
    const float denominator = rows.spec.stabilizer + denominators[m];
    for (int i = 0; i < rows.spec.head_dim; ++i) out[i] = sum[i] / denominator;
  }
}

// A thread's memory for a head, in floats.
struct RecurrentScratch {
  float *state, *keys, *values;  // arrays of the state, widened
  float *phi, *sums, *scores, *fold;
  IntegerRows words = {};  // byte_copy(): features, queries or weights as integers

  // With null memory, only computes the size.
  RecurrentScratch(const AttentionSpec& spec, const HeadLayout& layout, float* memory) {
    const int64_t features = spec.features();
    const bool narrow = spec.narrow_block();
    const auto next = [&](int64_t floats) {
      float* part = memory == nullptr ? nullptr : memory + size;
      size += floats;
      return part;
    };
    // Bytes are widened to 16 bits only, in pairs.
    state = next(narrow ? (features + 1) * layout.padded_dim : 0);
    keys = next(narrow && spec.mixed() ? (spec.near_dim() + 1) * layout.padded_block : 0);
    values = next(narrow ? (spec.block + 1) * layout.padded_dim : 0);
    phi = next(kQueryTile * features);
    sums = next(kQueryTile * layout.padded_dim);
    scores = next(kQueryTile * layout.padded_block);
    fold = next(kFoldFeatures * (layout.padded_block + layout.padded_dim) +
                (spec.decay_gate ? layout.padded_block : 0));
    if (!spec.byte_copy()) return;
    words.stride =
        std::max({RoundUpToLanes(features), RoundUpToLanes(spec.near_dim()), layout.padded_block});
    words.scales = next(kLanes);
    words.words = reinterpret_cast<int16_t*>(next(kQueryTile * words.stride / 2));
  }

  int64_t size = 0;
};

// Appends rows [row, row + count) to the block at `offset`. far_keys: null if they are the near
// keys.
template <typename Key, typename Value>
void AppendToBlock(const HeadRows& rows, int64_t row, int64_t count, int64_t offset, Key* near_keys,
                   float* far_keys, Value* values) {
  const AttentionSpec& spec = rows.spec;
  AppendKeys(rows.Near(rows.input.near_k, row), rows.near_stride(), count, spec.near_dim(), offset,
             near_keys);
  if (far_keys != nullptr) {
    AppendKeys(rows.Far(rows.input.far_k, row), rows.far_stride(), count, spec.far_dim(), offset,
               far_keys);
  }
  for (int64_t i = 0; i < count; ++i) {
    StoreRow(rows.Value(row + i), spec.head_dim, values + (offset + i) * rows.layout.padded_dim);
  }
}

// Computes the far part of a tile of queries: scratch.sums [count][dp] and denominators [count].
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
  }
  FeatureDots(scratch.phi, count, state.z, features, denominators);
  if (spec.byte_copy()) {
    ReadCopy(spec, rows.layout, state, reinterpret_cast<const int16_t*>(wide), scratch.phi, count,
             scratch.words, scratch.sums);
  } else {
    ReadState(spec, rows.layout, state, wide, scratch.phi, features, count, scratch.sums);
  }
}

// The rows of a segment that are in one block. Their keys and values are in the block already.
struct SegmentInBlock {
  int64_t row;  // first row
  int64_t count;
  int64_t block_offset;  // of the first row's token
  bool has_past;         // whether there is a far state
};

// Turns the scores of the token at `offset` of its block into weights and returns their sum.
float WeighNearRow(const NearWeight& weight, const HeadState& state, int64_t offset, int64_t limit,
                   float* scores) {
  V lanes = Zero();
  if (state.decay_sums == nullptr) {
    WeighRow(weight, NoDecay(), 0.0f, limit, scores, &lanes);
  } else {
    const NearDecay decay{Set1(state.decay_sums[offset]), state.decay_sums};
    WeighRow(weight, decay, 0.0f, limit, scores, &lanes);
  }
  return ReduceAdd(lanes);
}

// wide: what is read of S, widened to float32 (kQ8: to 16-bit integers), or null to read it as it is.
template <typename Block>
void BlockQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                  const Block& block, const float* wide, const RecurrentScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const HeadLayout& layout = rows.layout;
  const NearWeight weight = NearWeight::Of(spec);
  for (int64_t i = 0; i < run.count; i += kQueryTile) {
    const int tile = static_cast<int>(std::min<int64_t>(kQueryTile, run.count - i));
    const int64_t row = run.row + i;
    float denominators[kQueryTile] = {};
    if (run.has_past) {
      FarTile(rows, state, wide, row, tile, scratch, denominators);
    } else {
      std::fill_n(scratch.sums, tile * layout.padded_dim, 0.0f);
    }
    const int64_t first = run.block_offset + i;
    if (run.has_past && spec.decay_gate) {
      DecayFarPart(state.decay_sums + first, tile, scratch.sums, layout.padded_dim, denominators);
    }
    const QueryTile queries{rows.Near(rows.input.near_q, row), rows.near_stride(), tile,
                            spec.near_dim()};
    Scores(queries, block, first + tile, scratch.scores);
    for (int m = 0; m < tile; ++m) {
      denominators[m] += WeighNearRow(weight, state, first + m, Limit(first, m, spec.block),
                                      scratch.scores + m * layout.padded_block);
    }
    AddValues(tile, first, spec.block, scratch.scores, block,
              static_cast<int>(layout.padded_dim / kLanes), scratch.sums);
    WriteOutput(rows, row, tile, scratch.sums, denominators);
  }
}

// From this number of queries on, 16-bit blocks and states are widened first. The bits are the
// same.
constexpr int kWidenQueries = 2 * kQueryTile;

uint16_t* Bf16(float* data) { return reinterpret_cast<uint16_t*>(data); }

void NarrowBlockQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                        const RecurrentScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
  if (run.count >= kWidenQueries) {
    if (run.has_past) Widen(Bf16(state.s), spec.features() * dp, scratch.state);
    if (spec.mixed()) Widen(Bf16(state.near_keys), spec.near_dim() * bp, scratch.keys);
    Widen(Bf16(state.values), (run.block_offset + run.count) * dp, scratch.values);
    const float* keys = spec.mixed() ? scratch.keys : state.far_keys;
    BlockQueries(rows, state, run,
                 NearBlock<float, float>{{keys, spec.near_dim()}, bp, scratch.values, dp},
                 scratch.state, scratch);
    return;
  }
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

int16_t* Words(float* data) { return reinterpret_cast<int16_t*>(data); }

// Element: int8_t, or int16_t for widened ones.
template <typename Element>
void ByteBlockQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                      const Element* keys, const Element* values, const float* wide,
                      const RecurrentScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
  const int64_t tokens = run.block_offset + run.count;
  const Readahead after_values{values + (tokens + 1) / 2 * 2 * dp, rows.next};
  if (!spec.mixed()) {
    const FloatKeys far_keys{{state.far_keys, spec.near_dim()}};
    const ByteBlock<FloatKeys, Element> block{
        far_keys, bp, values, state.value_scales, dp, after_values, scratch.words};
    return BlockQueries(rows, state, run, block, wide, scratch);
  }
  const int64_t pairs = (spec.near_dim() + 1) / 2, panels = (tokens + kKeyPanel - 1) / kKeyPanel;
  const Readahead after_keys{keys + KeyPairIndex(pairs, 0, panels * kKeyPanel), values};
  const IntegerKeys<Element> near_keys{{keys, pairs, after_keys}, state.key_scales};
  const ByteBlock<IntegerKeys<Element>, Element> block{
      near_keys, bp, values, state.value_scales, dp, after_values, scratch.words};
  BlockQueries(rows, state, run, block, wide, scratch);
}

void ByteQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                 const RecurrentScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
  if (run.count < kWidenQueries) {
    return ByteBlockQueries(rows, state, run, state.key_bytes, state.value_bytes, nullptr, scratch);
  }
  if (run.has_past) {
    WidenPairs(state.copy, (spec.features() + 1) / 2 * 2 * dp, Words(scratch.state));
  }
  if (spec.mixed()) {
    WidenPairs(state.key_bytes, (spec.near_dim() + 1) / 2 * 2 * bp, Words(scratch.keys));
  }
  const int64_t tokens = run.block_offset + run.count;
  WidenPairs(state.value_bytes, (tokens + 1) / 2 * 2 * dp, Words(scratch.values));
  ByteBlockQueries<int16_t>(rows, state, run, Words(scratch.keys), Words(scratch.values),
                            scratch.state, scratch);
}

void FoldHead(const HeadRows& rows, const HeadState& state, const RecurrentScratch& scratch) {
  const float* values = state.values;
  if (rows.spec.narrow_block()) {
    Widen(Bf16(state.values), rows.spec.block * rows.layout.padded_dim, scratch.values);
    values = scratch.values;
  }
  FoldBlock(rows.spec, rows.layout, state, values, scratch.fold);
  if (rows.spec.byte_copy()) MakeCopy(rows.spec, rows.layout, state, scratch.fold);
}

void AppendRun(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run) {
  if (rows.spec.decay_gate) {
    AppendDecay(rows.LogDecay(run.row), rows.spec.heads, run.count, run.block_offset,
                state.decay_sums);
  }
  float* far_keys = rows.spec.mixed() ? state.far_keys : nullptr;
  if (!rows.spec.narrow_block()) {
    AppendToBlock(rows, run.row, run.count, run.block_offset, state.near_keys, far_keys,
                  state.values);
  } else if (rows.spec.mixed() && rows.spec.byte_copy()) {
    const int dim = rows.spec.near_dim();
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t token = run.block_offset + i;
      StoreRow(rows.Near(rows.input.near_k, run.row + i), dim, Bf16(state.near_keys) + token * dim);
      StoreRow(rows.Value(run.row + i), rows.spec.head_dim,
               Bf16(state.values) + token * rows.layout.padded_dim);
    }
    AppendKeys(rows.Far(rows.input.far_k, run.row), rows.far_stride(), run.count,
               rows.spec.far_dim(), run.block_offset, far_keys);
  } else if (rows.spec.mixed()) {
    AppendToBlock(rows, run.row, run.count, run.block_offset, Bf16(state.near_keys), far_keys,
                  Bf16(state.values));
  } else {
    AppendToBlock(rows, run.row, run.count, run.block_offset, state.far_keys, far_keys,
                  Bf16(state.values));
  }
  if (rows.spec.byte_copy()) {
    MakeBlockBytes(rows.spec, rows.layout, state, run.block_offset, run.count);
  }
}

// Makes what is read of a state that was loaded: S, if there is one, and the block buffer.
void RefreshBytes(const HeadRows& rows, const HeadState& state, int64_t position, float* scratch) {
  if (rows.spec.HasFarState(position)) MakeCopy(rows.spec, rows.layout, state, scratch);
  MakeBlockBytes(rows.spec, rows.layout, state, 0, rows.spec.BufferedTokens(position));
}

void RecurrentHead(const HeadRows& rows, int layer, const Segment& segment, float* memory) {
  const AttentionSpec& spec = rows.spec;
  const RecurrentScratch scratch(spec, rows.layout, memory);
  auto* states = static_cast<RecurrentState*>(segment.state);
  const HeadState state = states->Head(layer, rows.head);
  const int64_t position = segment.state->position();
  if (states->TakeStaleCopy(layer, rows.head)) RefreshBytes(rows, state, position, scratch.fold);
  for (int64_t row = 0; row < segment.rows;) {
    const int64_t token = position + row;
    const int64_t offset = token % spec.block;
    const SegmentInBlock run{row, std::min<int64_t>(segment.rows - row, spec.block - offset),
                             offset, token >= spec.block};
    if (offset == 0 && run.has_past) FoldHead(rows, state, scratch);
    AppendRun(rows, state, run);
    if (spec.byte_copy()) {
      ByteQueries(rows, state, run, scratch);
    } else if (spec.narrow_block()) {
      NarrowBlockQueries(rows, state, run, scratch);
    } else {
      const NearBlock<float, float> block{{state.near_keys, spec.near_dim()},
                                          rows.layout.padded_block,
                                          state.values,
                                          rows.layout.padded_dim};
      BlockQueries(rows, state, run, block, state.s, scratch);
    }
    row += run.count;
  }
}

// softmax and polynomial: a tile of queries reads every block up to its own.
struct KvHead {
  const HeadRows& rows;
  KvState* state;
  int layer;
  const NearWeight weight;

  NearBlock<float, float> Block(int64_t index) const {
    return {{state->Keys(layer, index, rows.head), rows.spec.near_dim()},
            rows.layout.padded_block,
            state->Values(layer, index, rows.head),
            rows.layout.padded_dim};
  }
  QueryTile Queries(int64_t row, int tile) const {
    return {rows.Near(rows.input.near_q, row), rows.near_stride(), tile, rows.spec.near_dim()};
  }

  // Finds the largest score of every row. A maximum is exact in any order.
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
      const NearBlock<float, float> block = Block(index);
      Scores(Queries(row, tile), block, Limit(first, tile - 1, size), scores);
      for (int m = 0; m < tile; ++m) {
        WeighRow(weight, NoDecay(), tops[m], Limit(first, m, size),
                 scores + m * rows.layout.padded_block, &lanes[m]);
      }
      AddValues(tile, first, size, scores, block, static_cast<int>(rows.layout.padded_dim / kLanes),
                sums);
    }
    float denominators[kQueryTile];
    for (int m = 0; m < tile; ++m) denominators[m] = ReduceAdd(lanes[m]);
    WriteOutput(rows, row, tile, sums, denominators);
  }
};

void CachedHead(const HeadRows& rows, int layer, const Segment& segment, float* memory) {
  auto* state = static_cast<KvState*>(segment.state);
  const int64_t position = state->position();
  const int64_t size = rows.spec.block;
  for (int64_t row = 0; row < segment.rows;) {
    const int64_t token = position + row;
    const int64_t count = std::min<int64_t>(segment.rows - row, size - token % size);
    float* keys = state->Keys(layer, token / size, rows.head);
    AppendToBlock(rows, row, count, token % size, keys, /*far_keys=*/nullptr,
                  state->Values(layer, token / size, rows.head));
    row += count;
  }
  const KvHead head{rows, state, layer, NearWeight::Of(rows.spec)};
  for (int64_t row = 0; row < segment.rows;) {
    // A tile stays in one block, so that the block offsets of its rows depend on positions only.
    const int64_t token = position + row;
    const int tile =
        static_cast<int>(std::min<int64_t>({kQueryTile, segment.rows - row, size - token % size}));
    head.Tile(row, tile, token, memory, memory + kQueryTile * rows.layout.padded_block);
    row += tile;
  }
}

// Where a decode step starts to read a head.
const float* FarStart(const AttentionSpec& spec, const HeadState& state) {
  return spec.byte_copy() ? state.z : state.s;
}

// Prefetches the cache lines that a decode step of a head writes, one in each row of the keys,
// whose misses would follow one another, and the start of each array that it reads front to back.
void PrefetchHead(const AttentionSpec& spec, const HeadState& state, int64_t block_offset) {
  const auto prefetch_start = [](const void* data, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(data) + i);
  };
  prefetch_start(FarStart(spec, state), 2048);
  prefetch_start(spec.byte_copy() ? static_cast<const void*>(state.key_bytes) : state.near_keys,
                 1024);
  prefetch_start(spec.byte_copy() ? static_cast<const void*>(state.value_bytes) : state.values,
                 1024);
  if (spec.decay_gate) prefetch_start(state.decay_sums, 1024);
  const auto prefetch_column = [&](void* keys, int dim, int width) {
    char* column = static_cast<char*>(keys) + KeyIndex(dim, 0, block_offset) * width;
    for (int i = 0; i < dim; ++i) __builtin_prefetch(column + i * kKeyPanel * width, 1);
  };
  prefetch_column(state.far_keys, spec.far_dim(), 4);
  if (!spec.mixed()) return;
  if (spec.byte_copy()) {
    prefetch_column(state.key_bytes, (spec.near_dim() + 1) / 2, 2);
    const int64_t dp = HeadLayout(spec).padded_dim;
    prefetch_start(Bf16(state.near_keys) + block_offset * spec.near_dim(), 2 * spec.near_dim());
    prefetch_start(Bf16(state.values) + block_offset / 2 * 2 * dp, static_cast<int>(4 * dp));
  } else {
    prefetch_column(state.near_keys, spec.near_dim(), spec.narrow_block() ? 2 : 4);
  }
}

// Computes heads [first, last), counted over all segments.
void RecurrentHeads(const AttentionSpec& spec, const HeadLayout& layout, int layer,
                    std::span<const Segment> segments, const AttentionInput& input, float* out,
                    int64_t first, int64_t last, float* memory) {
  for (int64_t i = first; i < last; ++i) {
    const Segment& segment = segments[i / spec.heads];
    // After the last head: prefetches the same head again, whose lines are in cache.
    const int64_t following = std::min(i + 1, last - 1);
    auto* state = static_cast<RecurrentState*>(segments[following / spec.heads].state);
    const HeadState next = state->Head(layer, static_cast<int>(following % spec.heads));
    if (following > i) PrefetchHead(spec, next, state->position() % spec.block);
    const HeadRows rows{spec,
                        layout,
                        input,
                        static_cast<int>(i % spec.heads),
                        segment.first_row,
                        out,
                        FarStart(spec, next)};
    RecurrentHead(rows, layer, segment, memory);
  }
}

void CachedHeads(const AttentionSpec& spec, const HeadLayout& layout, int layer,
                 std::span<const Segment> segments, const AttentionInput& input, float* out,
                 int64_t first, int64_t last, float* memory) {
  for (int64_t i = first; i < last; ++i) {
    const Segment& segment = segments[i / spec.heads];
    const HeadRows rows{spec, layout, input, static_cast<int>(i % spec.heads), segment.first_row,
                        out,  nullptr};
    CachedHead(rows, layer, segment, memory);
  }
}

}  // namespace

void CpuBackend::Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                           const AttentionInput& input, float* out) {
  PS_CHECK(layer >= 0 && layer < spec.layers) << layer;
  const HeadLayout layout(spec);
  const int64_t heads = static_cast<int64_t>(segments.size()) * spec.heads;
  const int64_t size = std::clamp<int64_t>(heads / (2 * context_.threads()), 1, spec.heads);
  const int64_t tasks = (heads + size - 1) / size;
  if (spec.kv_cache()) {
    for (const Segment& segment : segments) {
      static_cast<KvState*>(segment.state)
          ->Reserve(layer, segment.state->position() + segment.rows);
    }
  }
  context_.pool().ParallelFor(tasks, [&](int64_t task, int thread) {
    const int64_t first = task * size, last = std::min(first + size, heads);
    if (spec.kv_cache()) {
      float* memory =
          context_.Scratch(thread, kQueryTile * (layout.padded_block + layout.padded_dim));
      CachedHeads(spec, layout, layer, segments, input, out, first, last, memory);
    } else {
      float* memory = context_.Scratch(thread, RecurrentScratch(spec, layout, nullptr).size);
      RecurrentHeads(spec, layout, layer, segments, input, out, first, last, memory);
    }
  });
}

#include "kernels/cpu/isa_end.h"
