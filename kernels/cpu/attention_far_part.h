// The far part of a window (AttentionSpec::far_size): folds the blocks of its cache that leave it,
// and computes what queries read of their sums. A task is a kv head of a segment, from the
// segment's first token to its last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention_append.h"
#include "kernels/cpu/attention_elements.h"
#include "kernels/cpu/attention_far_bytes.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_near_bytes.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_update.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

class FarPart {
 public:
  // Writes the sums of weights times values, without AttentionSpec::FarFactor, to `out`, those of
  // weights to weights(). All keys and values that are folded are in the caches.
  FarPart(Context* context, const AttentionSpec& spec, int layer, std::span<const Segment> segments,
          const AttentionInput& input, float* out)
      : context_(*context),
        window_(spec),
        far_(spec.FarPart()),
        layout_(far_),
        layer_(layer),
        input_(input),
        out_(out) {
    int64_t rows = 0;
    std::vector<const Segment*> with_far;
    for (const Segment& segment : segments) {
      rows = std::max<int64_t>(rows, segment.first_row + segment.rows);
      if (window_.HasFarState(segment.state->position() + segment.rows))
        with_far.push_back(&segment);
    }
    weights_.resize(static_cast<size_t>(rows * far_.heads));
    FloatParts parts{nullptr};
    Scratch(&parts);
    const int heads = far_.key_heads();
    context_.pool().ParallelFor(std::ssize(with_far) * heads, [&](int64_t task, int thread) {
      FloatParts memory{context_.Scratch(thread, parts.size)};
      Head(*with_far[task / heads], static_cast<int>(task % heads), Scratch(&memory));
    });
  }

  // [rows, heads]; 0 for queries without a far part.
  const float* weights() const { return weights_.data(); }

 private:
  struct ThreadScratch {
    WideHead wide;
    TileScratch tile;
    float* row;  // a value
  };
  ThreadScratch Scratch(FloatParts* parts) const {
    return {WideHead::In(far_, layout_, tiles(), parts), TileScratch::In(far_, layout_, parts),
            parts->Next(layout_.padded_dim)};
  }
  TileUnit tiles() const { return context_.units().tiles; }

  void Head(const Segment& segment, int head, const ThreadScratch& scratch) {
    KvLayer& cache = CacheOf(segment, layer_);
    const HeadState state = cache.far().Head(head);
    const HeadRows rows{far_, layout_, input_, head, segment.first_row, out_, nullptr, tiles()};
    const int64_t position = segment.state->position();
    int64_t folded = position == 0 ? 0 : window_.FirstVisible(position - 1);
    bool stale = cache.far().TakeStaleCopy(head) && folded > 0;
    for (int64_t row = 0; row < segment.rows;) {
      const int64_t token = position + row;
      const int64_t count =
          std::min<int64_t>(segment.rows - row, window_.window - token % window_.window);
      for (const int64_t first = window_.FirstVisible(token); folded < first; stale = true) {
        Fold(&cache, folded, rows, state, scratch);
        folded += far_.block;
      }
      if (stale && far_.byte_copy()) MakeCopy(far_, layout_, state, scratch.tile.fold);
      stale = false;
      if (folded > 0) Queries(rows, state, row, count, scratch);
      row += count;
    }
  }

  // Folds the block of the cache that begins at token `first`, without the sinks. The block buffer
  // holds it until then.
  void Fold(KvLayer* cache, int64_t first, const HeadRows& rows, const HeadState& state,
            const ThreadScratch& scratch) const {
    const int64_t block = first / far_.block, dim = far_.far_dim(), bp = layout_.padded_block;
    std::copy_n(cache->FarKeys(block, rows.head), dim * bp, state.far_keys);
    if (far_.decay_gate) {
      std::copy_n(cache->DecaySums(block, rows.head), far_.block, state.decay_sums);
    }
    const int64_t sinks = std::clamp<int64_t>(window_.sinks - first, 0, far_.block);
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t t = 0; t < sinks; ++t) state.far_keys[KeyIndex(dim, i, t)] = 0;
    }
    for (int64_t t = 0; t < far_.block; ++t) {
      StoreValue(ValueOf(cache, block, rows.head, t, scratch.row), t, state);
    }
    if (far_.byte_copy()) MakeBlockBytes(far_, layout_, state, 0, far_.block);
    WidenFoldValues(rows, state, {0, far_.block}, scratch.wide);
    FoldRange(rows, state, {0, far_.features()}, scratch.wide, scratch.tile);
  }

  // A value of the cache, where it is or as float32 in `row`.
  const float* ValueOf(KvLayer* cache, int64_t block, int head, int64_t token, float* row) const {
    const int64_t dp = layout_.padded_dim, first = token * dp;
    const auto widen = [&](const auto* elements, float scale) {
      for (int64_t i = 0; i < dp; i += kLanes) {
        Store(Mul(LoadElements(elements + i), Set1(scale)), row + i);
      }
      return row;
    };
    switch (window_.cache_width()) {
      case 1:
        return widen(cache->Values<int8_t>(block, head) + first,
                     cache->ValueScales(block, head)[token]);
      case 2:
        return widen(cache->Values<F16>(block, head) + first, 1);
      default:
        return cache->Values<float>(block, head) + first;
    }
  }

  void StoreValue(const float* value, int64_t token, const HeadState& state) const {
    const int64_t first = token * layout_.padded_dim;
    if (far_.narrow_block()) {
      StoreRow(value, far_.head_dim, Bf16(state.values) + first);
    } else {
      StoreRow(value, far_.head_dim, state.values + first);
    }
  }

  // The queries of `count` rows from `row` on, which read the same sums.
  void Queries(const HeadRows& rows, const HeadState& state, int64_t row, int64_t count,
               const ThreadScratch& scratch) {
    const int group = far_.query_group(), end = (rows.head + 1) * group;
    const float* sums = state.s;  // as FarTile reads them
    if (far_.narrow_block() && !far_.byte_copy() && count * group < kWidenQueries) {
      sums = nullptr;  // as they are stored
    } else if (far_.narrow_block()) {
      WidenState(rows, state, {0, far_.features()}, scratch.wide);
      sums = scratch.wide.state;
    }
    const GroupTiling tiling = GroupTiling::Of(far_);
    for (int64_t i = 0; i < count; i += tiling.tokens) {
      const int tokens = static_cast<int>(std::min<int64_t>(tiling.tokens, count - i));
      for (int head = rows.head * group; head < end; head += tiling.heads) {
        const GroupTile tile{row + i, tokens, head, std::min(tiling.heads, end - head)};
        float weights[kQueryTile] = {};
        FarTile(rows, state, sums, tile, scratch.tile, weights);
        for (int m = 0; m < tile.rows(); ++m) {
          const int64_t of_row = tile.row + m / tile.heads;
          const int of_head = tile.first_head + m % tile.heads;
          std::copy_n(scratch.tile.sums + m * layout_.padded_dim, far_.head_dim,
                      rows.Out(of_row, of_head));
          weights_[(rows.first_row + of_row) * far_.heads + of_head] = weights[m];
        }
      }
    }
  }

  Context& context_;
  const AttentionSpec& window_;
  const AttentionSpec far_;
  const HeadLayout layout_;
  const int layer_;
  const AttentionInput& input_;
  float* const out_;
  std::vector<float> weights_;
};

#include "kernels/cpu/isa_end.inc"
