// Recurrent kinds: segments that are long for the number of threads, whose heads are divided too.
//
// They go from block to block, all heads of all long segments at once. For each block:
//   fold    ranges of features of S, with the block before it; nothing else writes S
//   append  ranges of tokens; under kQ8 also ranges of the copy of S, whose scales need all of S
//   query   ranges of the block's queries, which only read
// A range computes the outputs that one thread would have computed, with the same operations, so
// the bits do not depend on the ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention_far.h"
#include "kernels/cpu/attention_far_bytes.h"
#include "kernels/cpu/attention_near_bytes.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_update.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// A head of a long segment, and its rows in the current block.
struct LongHead {
  HeadRows rows;
  HeadState state;
  WideHead wide;
  float* magnitudes;  // kQ8: [copy_parts][dp], of the columns of S
  int64_t position = 0, row_count = 0;
  int64_t copy_parts = 0;
  bool stale = false;  // what is read of the state must be made first, since it was loaded
  SegmentInBlock run = {};

  // Whether the copy of S is made before the queries of `run`. All runs but the first begin a
  // block.
  bool copies() const {
    return rows.spec.byte_copy() && run.has_past && (stale || run.block_offset == 0);
  }
};

class LongSegments {
 public:
  LongSegments(Context* context, const AttentionSpec& spec, const HeadLayout& layout)
      : context_(*context), spec_(spec), layout_(layout) {
    FloatParts scratch{nullptr}, shared{nullptr};
    TileScratch::In(spec, layout, &scratch);
    SharedPart(&shared);
    scratch_floats_ = scratch.size;
    shared_floats_ = shared.size;
  }

  // Computes all rows of the segments.
  void Run(int layer, std::span<const Segment> segments, const AttentionInput& input, float* out) {
    AddHeads(layer, segments, input, out);
    Prepare();
    while (!active_.empty()) {
      Fold();
      Append();
      Query();
      Advance();
    }
  }

 private:
  struct SharedMemory {
    WideHead wide;
    float* magnitudes;
  };
  TileUnit tiles() const { return context_.units().tiles; }

  // What the threads share of one head.
  SharedMemory SharedPart(FloatParts* parts) const {
    const WideHead wide = WideHead::In(spec_, layout_, tiles(), parts);
    const int64_t ranges = spec_.byte_copy() ? Units(spec_.features(), kFeatureUnit) : 0;
    return {wide, parts->Next(ranges * layout_.padded_dim)};
  }

  void AddHeads(int layer, std::span<const Segment> segments, const AttentionInput& input,
                float* out) {
    const auto count = static_cast<int64_t>(segments.size()) * spec_.key_heads();
    const auto bytes = static_cast<int64_t>(sizeof(float)) * count * shared_floats_;
    FloatParts shared{reinterpret_cast<float*>(context_.Shared(bytes))};
    heads_.reserve(static_cast<size_t>(count));
    for (const Segment& segment : segments) {
      RecurrentLayer& states = RecurrentOf(segment, layer);
      const int64_t position = segment.state->position();
      for (int head = 0; head < spec_.key_heads(); ++head) {
        const SharedMemory memory = SharedPart(&shared);
        heads_.push_back({{spec_, layout_, input, head, segment.first_row, out, nullptr, tiles()},
                          states.Head(head),
                          memory.wide,
                          memory.magnitudes,
                          position,
                          segment.rows,
                          /*copy_parts=*/0,
                          states.TakeStaleCopy(head),
                          RowsInBlock(spec_, position, 0, segment.rows)});
        active_.push_back(&heads_.back());
      }
    }
  }

  static int64_t Units(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

  // Calls fn(head, part, thread) for the parts of every head. units: into how many parts the work
  // of a head can be cut.
  template <typename Fn>
  void ForParts(int64_t units, const Fn& fn) {
    const int64_t heads = std::ssize(active_), parts = context_.Parts(heads, units);
    context_.pool().ParallelFor(heads * parts, [&](int64_t task, int thread) {
      fn(*active_[task / parts], Part{task % parts, parts}, thread);
    });
  }

  // The largest of number(head) over all heads.
  template <typename Number>
  int64_t Largest(const Number& number) const {
    int64_t largest = 0;
    for (const LongHead* head : active_) largest = std::max<int64_t>(largest, number(*head));
    return largest;
  }

  TileScratch Scratch(int thread) {
    FloatParts parts{context_.Scratch(thread, scratch_floats_)};
    return TileScratch::In(spec_, layout_, &parts);
  }

  Range FeaturesOf(const Part& part) const { return part.Of({0, spec_.features()}, kFeatureUnit); }

  // Widens what the state has of tokens before the segment.
  void Prepare() {
    const int64_t tokens =
        Largest([&](const LongHead& h) { return spec_.BufferedTokens(h.position); });
    if (!spec_.narrow_block() || tokens == 0) return;
    const int64_t units =
        std::max(Units(tokens, kTokenUnit), Units(spec_.features(), kFeatureUnit));
    ForParts(units, [&](LongHead& head, const Part& part, int) {
      const Range buffered = part.Of({0, spec_.BufferedTokens(head.position)}, kTokenUnit);
      if (head.stale) {
        MakeBlockBytes(spec_, layout_, head.state, buffered.first, buffered.size());
      }
      Widen(head, buffered);
      if (head.run.has_past && !head.run.folds() && !head.copies()) {
        WidenState(head.rows, head.state, FeaturesOf(part), head.wide);
      }
    });
  }

  void Widen(const LongHead& head, const Range& tokens) {
    WidenTokens(head.rows, head.state, tokens, head.wide);
    if (tiles() != TileUnit::kNone) {
      WidenFoldValues(head.rows, head.state, tokens, head.wide);
    }
  }

  void Fold() {
    const auto takes_part = [](const LongHead& h) { return h.run.folds() || h.copies(); };
    if (Largest(takes_part) == 0) return;
    ForParts(Units(spec_.features(), kFeatureUnit),
             [&](LongHead& head, const Part& part, int thread) {
               const Range features = FeaturesOf(part);
               if (head.run.folds()) {
                 FoldRange(head.rows, head.state, features, head.wide, Scratch(thread));
                 if (!spec_.byte_copy()) WidenState(head.rows, head.state, features, head.wide);
               }
               if (!head.copies()) return;
               if (part.index == 0) head.copy_parts = part.count;
               ColumnMagnitudes(layout_, head.state, features,
                                head.magnitudes + part.index * layout_.padded_dim);
             });
  }

  void Append() {
    int64_t units = Units(Largest([](const LongHead& h) { return h.run.count; }), kTokenUnit);
    if (Largest([](const LongHead& h) { return h.copies(); }) > 0) {
      units = std::max(units, Units(spec_.features(), kFeatureUnit));
    }
    ForParts(units, [&](LongHead& head, const Part& part, int thread) {
      if (head.copies()) CopyPart(head, FeaturesOf(part), Scratch(thread).fold);
      const Range tokens = part.Of(head.run.tokens(), kTokenUnit);
      if (tokens.empty()) return;
      if (tokens.first == head.run.block_offset) AppendRunDecay(head.rows, head.state, head.run);
      AppendRun(head.rows, head.state, head.run.Tokens(tokens));
      Widen(head, tokens);
    });
  }

  void CopyPart(const LongHead& head, const Range& features, float* scratch) {
    if (features.empty()) return;
    CopyRows(spec_, layout_, head.state, features, head.magnitudes, head.copy_parts, scratch);
    WidenState(head.rows, head.state, features, head.wide);
  }

  void Query() {
    const int64_t count = Largest([](const LongHead& h) { return h.run.count; });
    // Shorter tiles cost more, but less than threads without a tile.
    const int tokens = GroupTiling::Of(spec_).tokens;
    const bool few = std::ssize(active_) * Units(count, tokens) < context_.threads();
    const int64_t unit = few ? std::min(kShortTile, tokens) : tokens;
    ForParts(Units(count, unit), [&](LongHead& head, const Part& part, int thread) {
      const SegmentInBlock run = head.run.Rows(part.Of({0, head.run.count}, unit));
      WideQueries(head.rows, head.state, run, head.wide, Scratch(thread));
    });
  }

  // Goes on to the rows of the next block.
  void Advance() {
    for (LongHead* head : active_) {
      const int64_t row = head->run.row + head->run.count;
      head->run = RowsInBlock(spec_, head->position, row, head->row_count);
    }
    std::erase_if(active_, [](const LongHead* head) { return head->run.count == 0; });
  }

  static constexpr int kShortTile = 4;

  Context& context_;
  const AttentionSpec& spec_;
  const HeadLayout& layout_;
  int64_t scratch_floats_ = 0;  // of a thread
  int64_t shared_floats_ = 0;   // of a head
  std::vector<LongHead> heads_;
  std::vector<LongHead*> active_;  // the heads with rows left
};

#include "kernels/cpu/isa_end.inc"
