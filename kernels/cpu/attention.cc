// The attention op. Of recurrent kinds a task is some heads of a segment, each from the segment's
// first token to its last. If threads would wait for the last heads of a long segment, it is
// divided within its heads instead (attention_long.h). KV kinds are divided by queries and spans of
// keys (attention_divided.h). Tasks share nothing and bits do not depend on the division, so any
// number of threads yields the same bits.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/attention_divided.h"
#include "kernels/cpu/attention_far_bytes.h"
#include "kernels/cpu/attention_head_lines.h"
#include "kernels/cpu/attention_long.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_near_bytes.h"
#include "kernels/cpu/attention_prefetch.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_update.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

namespace {

// Makes what is read of a state that was loaded: S, if there is one, and the block buffer.
void RefreshBytes(const HeadRows& rows, const HeadState& state, int64_t position, float* scratch) {
  if (rows.spec.HasFarState(position)) MakeCopy(rows.spec, rows.layout, state, scratch);
  MakeBlockBytes(rows.spec, rows.layout, state, 0, rows.spec.BufferedTokens(position));
}

void FoldHead(const HeadRows& rows, const HeadState& state, const WideHead& wide,
              const TileScratch& scratch) {
  WidenFoldValues(rows, state, {0, rows.spec.block}, wide);
  FoldRange(rows, state, {0, rows.spec.features()}, wide, scratch);
  if (rows.spec.byte_copy()) MakeCopy(rows.spec, rows.layout, state, scratch.fold);
}

void RecurrentHead(const HeadRows& rows, int layer, const Segment& segment, float* memory) {
  const AttentionSpec& spec = rows.spec;
  FloatParts parts{memory};
  const WideHead wide = WideHead::In(spec, rows.layout, rows.tiles, &parts);
  const TileScratch scratch = TileScratch::In(spec, rows.layout, &parts);
  RecurrentLayer& heads = RecurrentOf(segment, layer);
  const HeadState state = heads.Head(rows.head);
  const int64_t position = segment.state->position();
  if (heads.TakeStaleCopy(rows.head)) RefreshBytes(rows, state, position, scratch.fold);
  const auto prefetch = [&] {
    if (rows.prefetcher != nullptr) rows.prefetcher->Prefetch(kLinesAtOnce);
  };
  HeadRows wide_rows = rows;
  wide_rows.prefetcher = nullptr;
  for (int64_t row = 0; row < segment.rows;) {
    const SegmentInBlock run = RowsInBlock(spec, position, row, segment.rows);
    if (run.folds()) FoldHead(rows, state, wide, scratch);
    prefetch();
    AppendRunDecay(rows, state, run);
    AppendRun(rows, state, run);
    prefetch();
    if (spec.narrow_block() && run.count * spec.query_group() < kWidenQueries) {
      NarrowQueries(rows, state, run, scratch);
    } else {
      if (run.has_past) WidenState(rows, state, {0, spec.features()}, wide);
      WidenTokens(rows, state, {0, run.tokens().last}, wide);
      WideQueries(wide_rows, state, run, wide, scratch);
    }
    row += run.count;
  }
}

int64_t RecurrentFloats(const AttentionSpec& spec, const HeadLayout& layout, TileUnit tiles) {
  FloatParts parts{nullptr};
  if (spec.byte_copy()) HeadLines{spec, layout, &parts};
  WideHead::In(spec, layout, tiles, &parts);
  TileScratch::In(spec, layout, &parts);
  return parts.size;
}

// Prefetches the cache lines that a decode step of a head writes, one in each row of the keys,
// whose misses would follow one another, and the start of each array that it reads front to back.
// kQ8 has a LinePrefetcher in its place.
void PrefetchHead(const AttentionSpec& spec, const HeadState& state, int64_t block_offset) {
  const auto prefetch_start = [](const void* data, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(data) + i);
  };
  prefetch_start(state.s, 2048);
  prefetch_start(state.near_keys, 1024);
  prefetch_start(state.values, 1024);
  if (spec.decay_gate) prefetch_start(state.decay_sums, 1024);
  const auto prefetch_column = [&](void* keys, int dim, int width) {
    char* column = static_cast<char*>(keys) + KeyIndex(dim, 0, block_offset) * width;
    for (int i = 0; i < dim; ++i) __builtin_prefetch(column + i * kKeyPanel * width, 1);
  };
  prefetch_column(state.far_keys, spec.far_dim(), 4);
  if (spec.mixed()) prefetch_column(state.near_keys, spec.near_dim(), spec.narrow_block() ? 2 : 4);
}

// Computes kv heads [first, last), counted over all segments. after: the head that this thread
// probably computes after them, or last - 1.
void RecurrentHeads(const AttentionSpec& spec, const HeadLayout& layout, int layer,
                    std::span<const Segment> segments, const AttentionInput& input, float* out,
                    int64_t first, int64_t last, int64_t after, TileUnit tiles, float* memory) {
  FloatParts parts{memory};
  std::optional<HeadLines> lines;
  if (spec.byte_copy()) lines.emplace(spec, layout, &parts);
  const int heads = spec.key_heads();
  for (int64_t i = first; i < last; ++i) {
    const Segment& segment = segments[i / heads];
    // After the last head: under kQ8 the one that probably follows, else the same head, whose lines
    // are in cache.
    const int64_t following = i + 1 < last ? i + 1 : spec.byte_copy() ? after : i;
    const Segment& of_next = segments[following / heads];
    const HeadState next = RecurrentOf(of_next, layer).Head(static_cast<int>(following % heads));
    const int64_t position = of_next.state->position();
    HeadRows rows{spec, layout, input, static_cast<int>(i % heads), segment.first_row,
                  out,  next.s, tiles};
    std::optional<LinePrefetcher> prefetcher;
    if (lines) {
      prefetcher = lines->Of(next, position % spec.block, position >= spec.block);
      rows.prefetcher = &*prefetcher;
    } else if (following > i) {
      PrefetchHead(spec, next, position % spec.block);
    }
    RecurrentHead(rows, layer, segment, memory + parts.size);
  }
}

// A segment is not long if it has fewer rows: its heads take less time than threads need to meet.
constexpr int kMinLongRows = 2 * kQueryTile;

// Whether threads would idle if every head of the segment were one task of a step of `step_rows`
// rows.
bool IsLong(const Context& context, const AttentionSpec& spec, const Segment& segment,
            int64_t step_rows) {
  if (segment.rows < kMinLongRows) return false;
  // As much work as the step.
  const int64_t heads_alike = spec.key_heads() * step_rows / segment.rows;
  return context.Parts(heads_alike, segment.rows / kQueryTile) > 1;
}

// The ends of tasks, counted in heads over all segments. A task is as many neighbouring heads as
// leave two tasks for a thread, by rows, at least one and at most a segment's number.
std::vector<int64_t> TaskEnds(int threads, int heads, std::span<const Segment> segments) {
  int64_t rows = 0;
  for (const Segment& segment : segments) rows += int64_t{heads} * segment.rows;
  const int64_t share = rows / (2 * threads);
  std::vector<int64_t> ends;
  int64_t task_heads = 0, task_rows = 0;
  for (int64_t i = 0; i < std::ssize(segments) * heads; ++i) {
    const int head_rows = segments[i / heads].rows;
    if (task_heads > 0 && (task_heads == heads || task_rows + head_rows > share)) {
      ends.push_back(i);
      task_heads = task_rows = 0;
    }
    ++task_heads;
    task_rows += head_rows;
  }
  ends.push_back(std::ssize(segments) * heads);
  return ends;
}

void RunWholeHeads(Context* context, const AttentionSpec& spec, const HeadLayout& layout, int layer,
                   std::span<const Segment> segments, const AttentionInput& input, float* out) {
  if (segments.empty()) return;
  const TileUnit tiles = context->units().tiles;
  const std::vector<int64_t> ends = TaskEnds(context->threads(), spec.key_heads(), segments);
  const int64_t floats = RecurrentFloats(spec, layout, tiles);
  context->pool().ParallelFor(std::ssize(ends), [&](int64_t task, int thread) {
    const int64_t first = task == 0 ? 0 : ends[task - 1], last = ends[task];
    // The task that this thread probably takes next: the other threads take those in between.
    const int64_t next = task + context->threads();
    const int64_t after = next < std::ssize(ends) ? ends[next - 1] : last - 1;
    RecurrentHeads(spec, layout, layer, segments, input, out, first, last, after, tiles,
                   context->Scratch(thread, floats));
  });
}

// step_rows: of all segments.
void RunSegments(Context* context, const AttentionSpec& spec, int layer,
                 std::span<const Segment> segments, int64_t step_rows, const AttentionInput& input,
                 float* out) {
  const HeadLayout layout(spec);
  if (spec.kv_cache()) {
    CachedAttention(context, spec, layout, layer, segments, input, out).Run();
    return;
  }
  const auto is_long = [&](const Segment& s) { return IsLong(*context, spec, s, step_rows); };
  if (std::none_of(segments.begin(), segments.end(), is_long)) {
    return RunWholeHeads(context, spec, layout, layer, segments, input, out);
  }
  std::vector<Segment> whole, divided;
  for (const Segment& segment : segments) (is_long(segment) ? divided : whole).push_back(segment);
  RunWholeHeads(context, spec, layout, layer, whole, input, out);
  LongSegments(context, spec, layout).Run(layer, divided, input, out);
}

}  // namespace

void CpuBackend::Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                           const AttentionInput& input, float* out) {
  int64_t rows = 0;
  for (const Segment& segment : segments) {
    PS_CHECK(layer >= 0 && layer < segment.state->parts()) << layer;
    rows += segment.rows;
    segment.state->ClearPart(layer);
    if (spec.kv_cache()) {
      CacheOf(segment, layer)
          .Reserve(segment.state->position(), segment.state->position() + segment.rows);
    }
  }
  RunSegments(&context_, spec, layer, segments, rows, input, out);
  for (const Segment& segment : segments) {
    if (spec.window == 0) break;
    CacheOf(segment, layer).Drop(segment.state->position() + segment.rows);
  }
}

#include "kernels/cpu/isa_end.inc"
