// KV kinds: how a step's queries are divided among threads.
//
// All keys and values are stored before queries read them. Queries are cut into tasks of equal
// cost, at the ends of spans if too few queries are together: a few queries of long sequences make
// as many tasks as many queries of short ones. The spans of queries that several tasks compute are
// joined in the end.
//
// Spans of keys that the caches of several segments hold together are computed once for all their
// queries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention_append.h"
#include "kernels/cpu/attention_cached.h"
#include "kernels/cpu/attention_decay.h"
#include "kernels/cpu/attention_elements.h"
#include "kernels/cpu/attention_far_part.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_update.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// Stores the rows of `run` in their block.
template <typename Element>
static void AppendElements(const HeadRows& rows, KvLayer* cache, int64_t block,
                           const SegmentInBlock& run) {
  AppendToBlock(rows, run.row, run.count, run.block_offset, cache->Keys<Element>(block, rows.head),
                rows.spec.far_part() ? cache->FarKeys(block, rows.head) : nullptr,
                cache->Values<Element>(block, rows.head));
}

// The same as 8-bit integers.
static void AppendBytes(const HeadRows& rows, KvLayer* cache, int64_t block,
                        const SegmentInBlock& run) {
  const int dim = rows.spec.head_dim;
  const int64_t dp = rows.layout.padded_dim;
  if (rows.spec.far_part()) {
    AppendKeys(rows.FarKey(run.row), rows.far_key_stride(), run.count, rows.spec.far_dim(),
               run.block_offset, cache->FarKeys(block, rows.head));
  }
  int8_t *keys = cache->Keys<int8_t>(block, rows.head),
         *values = cache->Values<int8_t>(block, rows.head);
  float *key_scales = cache->KeyScales(block, rows.head),
        *value_scales = cache->ValueScales(block, rows.head);
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t token = run.block_offset + i;
    int8_t* row = values + token * dp;
    // A key's integers are written to the value's place first.
    key_scales[token] = QuantizeForCache(rows.NearKey(run.row + i), dim, row);
    int8_t* column = keys + KeyIndex(dim, 0, token);
    for (int j = 0; j < dim; ++j) column[j * kKeyPanel] = row[j];
    value_scales[token] = QuantizeForCache(rows.Value(run.row + i), dim, row);
  }
}

// Stores the keys and values of a range of the rows of a segment after `position` tokens. The cache
// has their blocks.
static void AppendCached(const HeadRows& rows, KvLayer* cache, int64_t position,
                         const Range& range) {
  for (int64_t row = range.first; row < range.last;) {
    const SegmentInBlock run = RowsInBlock(rows.spec, position, row, range.last);
    const int64_t block = (position + row) / rows.spec.block;
    switch (rows.spec.cache_width()) {
      case 1:
        AppendBytes(rows, cache, block, run);
        break;
      case 2:
        AppendElements<F16>(rows, cache, block, run);
        break;
      default:
        AppendElements<F32>(rows, cache, block, run);
    }
    row += run.count;
  }
}

// Stores the log decays of all rows of a segment, whose sums continue one another.
static void AppendCachedDecay(const HeadRows& rows, KvLayer* cache, int64_t position,
                              int64_t count) {
  if (!rows.spec.decay_gate) return;
  for (int64_t row = 0; row < count;) {
    const SegmentInBlock run = RowsInBlock(rows.spec, position, row, count);
    AppendDecay(rows.LogDecay(row), rows.spec.key_heads(), run.count, run.block_offset,
                cache->DecaySums((position + row) / rows.spec.block, rows.head));
    row += run.count;
  }
}

class CachedAttention {
 public:
  CachedAttention(Context* context, const AttentionSpec& spec, const HeadLayout& layout, int layer,
                  std::span<const Segment> segments, const AttentionInput& input, float* out)
      : context_(*context),
        spec_(spec),
        layout_(layout),
        layer_(layer),
        segments_(segments),
        input_(input),
        out_(out),
        tiles_(spec) {
    FloatParts scratch{nullptr};
    CachedScratch::In(spec, layout, &scratch);
    scratch_floats_ = scratch.size;
  }

  void Run() {
    AddQueries();
    if (queries_.empty()) return;
    Append();
    ComputeTogether();
    std::optional<FarPart> far;
    if (spec_.far_part()) far.emplace(&context_, spec_, layer_, segments_, input_, out_);
    far_weights_ = far ? far->weights() : nullptr;
    const std::vector<Place> ends = Divide();
    PrepareJoins(ends);
    // The last ones first: what is computed together is whole and takes longest.
    context_.pool().ParallelFor(std::ssize(ends), [&](int64_t i, int thread) {
      const int64_t task = std::ssize(ends) - 1 - i;
      RunTask(task == 0 ? Place{0, 0} : ends[task - 1], ends[task], Scratch(thread));
    });
    Join();
  }

 private:
  // The span at place `span` of some queries. At the end of queries: the first one of the next.
  struct Place {
    int64_t queries, span;
  };
  // Sums of a span of some queries, counted in floats, and the first query in them that is meant.
  struct SumsPlace {
    int64_t first;
    int queries, row;
  };
  // Segments, by the place of their queries of the first kv head in queries_.
  using Members = std::vector<int64_t>;

  HeadRows Rows(const Segment& segment, int kv_head) const {
    return {spec_, layout_, input_, kv_head, segment.first_row, out_, nullptr, TileUnit::kNone};
  }

  CachedScratch Scratch(int thread) {
    FloatParts parts{context_.Scratch(thread, scratch_floats_)};
    return CachedScratch::In(spec_, layout_, &parts);
  }

  // How many tokens from `token` on, at least one and at most `tokens`, are in one tile, and the
  // first ones of their windows in one.
  int TokensAlike(int64_t token, int64_t tokens) const {
    const int64_t tile = tiles_.Of(token), window = tiles_.Of(spec_.FirstVisible(token));
    tokens = std::min(tokens, tiles_.First(tile) + tiles_.Size(tile) - token);
    int alike = 1;
    while (alike < tokens && tiles_.Of(spec_.FirstVisible(token + alike)) == window) ++alike;
    return alike;
  }

  void AddQueries() {
    const CachedTiling tiling = CachedTiling::Of(spec_);
    const int group = spec_.query_group();
    for (const Segment& segment : segments_) {
      const int64_t position = segment.state->position();
      for (int kv_head = 0; kv_head < spec_.key_heads(); ++kv_head) {
        for (int64_t row = 0; row < segment.rows;) {
          const int64_t token = position + row;
          const int tokens =
              TokensAlike(token, std::min<int64_t>(tiling.tokens, segment.rows - row));
          const int end = (kv_head + 1) * group;
          for (int head = kv_head * group; head < end; head += tiling.heads) {
            queries_.push_back(
                {&segment, kv_head, row, tokens, head, std::min(tiling.heads, end - head), token});
            queries_.back().FindTiles(spec_, tiles_);
          }
          row += tokens;
        }
      }
    }
  }

  // Whether all queries of a segment, of each kv head, are computed together. Then the task of
  // their last span stores their keys and values, which no other span reads.
  bool Together(const CachedQueries& of) const {
    return of.tokens == of.segment->rows && of.heads == spec_.query_group();
  }

  // Segments that share fewer spans are computed apart: to join the sums takes as long.
  static constexpr int64_t kMinSharedSpans = 4;

  // Finds the spans that are before the tokens of several segments and whose blocks all of these
  // hold, from the first span on, since what they share is how their texts begin. Each query's sums
  // are of the same operations as alone.
  void ComputeTogether() {
    if (spec_.kind != AttentionKind::kSoftmax || spec_.window > 0) return;
    std::vector<Members> groups(1);
    for (int64_t i = 0; i < std::ssize(queries_);) {
      const CachedQueries& of = queries_[i];
      if (Together(of) && 2 * of.rows() <= kCachedQueries) groups.front().push_back(i);
      i += Together(of) ? spec_.key_heads() : 1;
    }
    for (int64_t span = 0; !groups.empty(); ++span) {
      const int64_t end = tiles_.First(tiles_.FirstTile(span + 1));
      std::vector<Members> next;
      for (Members& group : groups) {
        std::erase_if(group, [&](int64_t i) { return queries_[i].token < end; });
        SplitByBlocks(span, &group, &next);
      }
      for (const Members& group : next) {
        if (span + 1 < kMinSharedSpans) break;
        for (int64_t of = span + 1 == kMinSharedSpans ? 0 : span; of <= span; ++of) {
          AddTogether(of, group);
        }
      }
      groups = std::move(next);
    }
  }

  // Appends those of a group, two or more, that hold the same blocks of a span.
  void SplitByBlocks(int64_t span, Members* group, std::vector<Members>* out) const {
    const int64_t first = tiles_.Block(tiles_.FirstTile(span)),
                  last = tiles_.Block(tiles_.FirstTile(span + 1) - 1);
    const auto cache = [&](int64_t i) -> KvLayer& { return CacheOf(*queries_[i].segment, layer_); };
    const auto last_block = [&](int64_t i) { return cache(i).template Keys<float>(last, 0); };
    const auto same = [&](int64_t i, int64_t j) {
      KvLayer &a = cache(i), &b = cache(j);
      for (int64_t block = first; block <= last; ++block) {
        if (a.Keys<float>(block, 0) != b.Keys<float>(block, 0)) return false;
      }
      return true;
    };
    const auto end_of = [&](auto begin) {
      return std::find_if(begin, group->end(), [&](int64_t i) { return !same(*begin, i); });
    };
    if (!group->empty() && end_of(group->begin()) != group->end()) {
      std::ranges::sort(*group, std::less<>(), last_block);
    }
    for (auto begin = group->begin(); begin != group->end();) {
      const auto end = end_of(begin);
      if (end - begin > 1) out->emplace_back(begin, end);
      begin = end;
    }
  }

  // Adds a span of the queries of a group, kCachedQueries at most at a time, to what is computed.
  void AddTogether(int64_t span, const Members& group) {
    int64_t most = 1;
    for (const int64_t i : group) most = std::max<int64_t>(most, queries_[i].rows());
    const int64_t size = std::ssize(group), at_most = kCachedQueries / most;
    const int64_t parts = (size + at_most - 1) / at_most;
    for (int64_t part = 0; part < parts; ++part) {
      const Range range = Part{part, parts}.Of({0, size}, 1);
      CachedQueries of = queries_[group[range.first]];
      of.together = std::ssize(together_);
      of.earlier = -1;
      of.tokens = 1;
      of.heads = 0;
      of.window = tiles_.FirstTile(span);
      of.spans = 1;
      together_.emplace_back(group.begin() + range.first, group.begin() + range.last);
      for (const int64_t i : together_.back()) of.heads += queries_[i].rows();
      int row = 0;
      for (const int64_t i : together_.back()) {
        BeginAfter(span, i, {sums_, of.heads, row});
        row += queries_[i].rows();
      }
      for (of.kv_head = 0; of.kv_head < spec_.key_heads(); ++of.kv_head) {
        of.sums = -1;
        GiveSums(&of);
        queries_.push_back(of);
      }
    }
  }

  // Leaves a span to queries of several segments, which have its sums at `place` for the first kv
  // head.
  void BeginAfter(int64_t span, int64_t i, const SumsPlace& place) {
    if (queries_[i].earlier < 0) earlier_.emplace_back();
    const int64_t earlier =
        queries_[i].earlier < 0 ? std::ssize(earlier_) - 1 : queries_[i].earlier;
    earlier_[earlier].push_back(place);
    for (int kv_head = 0; kv_head < spec_.key_heads(); ++kv_head) {
      CachedQueries& of = queries_[i + kv_head];
      of.earlier = earlier;
      of.window = tiles_.FirstTile(span + 1);
      --of.spans;
    }
  }

  // Copies the queries of several segments.
  void GatherQueries(const CachedQueries& of, float* out) const {
    const int64_t dim = spec_.near_dim(), group = spec_.query_group();
    for (const int64_t i : together_[of.together]) {
      const CachedQueries& member = queries_[i];
      const HeadRows rows = Rows(*member.segment, of.kv_head);
      for (int t = 0; t < member.tokens; ++t, out += group * dim) {
        std::copy_n(rows.NearQuery(t, static_cast<int>(of.kv_head * group)), group * dim, out);
      }
    }
  }

  // Stores the keys and values of the segments whose queries are apart.
  void Append() {
    std::vector<const Segment*> apart;
    int64_t longest = 0;
    for (const CachedQueries& of : queries_) {
      if (Together(of) || (!apart.empty() && apart.back() == of.segment)) continue;
      apart.push_back(of.segment);
      longest = std::max<int64_t>(longest, of.segment->rows);
    }
    if (apart.empty()) return;
    const int kv_heads = spec_.key_heads();
    const int64_t heads = std::ssize(apart) * kv_heads;
    const int64_t parts = context_.Parts(heads, (longest + kTokenUnit - 1) / kTokenUnit);
    context_.pool().ParallelFor(heads * parts, [&](int64_t task, int) {
      const Segment& segment = *apart[task / parts / kv_heads];
      const int64_t position = segment.state->position();
      const Range tokens =
          Part{task % parts, parts}.Of({position, position + segment.rows}, kTokenUnit);
      const HeadRows rows = Rows(segment, static_cast<int>(task / parts % kv_heads));
      KvLayer* cache = &CacheOf(segment, layer_);
      AppendCached(rows, cache, position, {tokens.first - position, tokens.last - position});
      if (task % parts == 0) AppendCachedDecay(rows, cache, position, segment.rows);
    });
  }

  // Of a span of queries: its keys and values are read once, which takes the time of about two
  // queries.
  static int64_t Cost(const CachedQueries& of) { return 2 + of.rows(); }

  // The ends of tasks. Queries that are less than half a task stay whole.
  std::vector<Place> Divide() const {
    int64_t total = 0;
    for (const CachedQueries& of : queries_) total += of.spans * Cost(of);
    const int64_t tasks = context_.threads() == 1 ? 1 : 4 * int64_t{context_.threads()};
    const int64_t share = (total + tasks - 1) / tasks;
    std::vector<Place> ends;
    int64_t done = 0, next = share;
    for (int64_t i = 0; i < std::ssize(queries_); ++i) {
      const CachedQueries& of = queries_[i];
      const bool whole = 2 * of.spans * Cost(of) < share;
      for (int64_t span = 1; span <= of.spans; ++span) {
        done += Cost(of);
        if (done < next || (whole && span < of.spans)) continue;
        ends.push_back(span < of.spans ? Place{i, span} : Place{i + 1, 0});
        next = (done / share + 1) * share;
      }
    }
    const Place last{std::ssize(queries_), 0};
    if (ends.empty() || ends.back().queries < last.queries) ends.push_back(last);
    return ends;
  }

  // Gives memory to the sums that are joined in the end: of queries that several tasks compute, or
  // that have sums of earlier spans.
  void PrepareJoins(const std::vector<Place>& ends) {
    for (const Place& end : ends) {
      if (end.span > 0) GiveSums(&queries_[end.queries]);
    }
    for (CachedQueries& of : queries_) {
      if (of.earlier >= 0) GiveSums(&of);
    }
    const int64_t bytes = sums_ * static_cast<int64_t>(sizeof(float));
    shared_ = sums_ == 0 ? nullptr : reinterpret_cast<float*>(context_.Shared(bytes));
  }
  void GiveSums(CachedQueries* of) {
    if (of->sums >= 0) return;
    of->sums = sums_;
    sums_ += of->spans * SpanSums::Floats(layout_, of->rows());
  }

  SpanSums SumsAt(const SumsPlace& place) const {
    FloatParts parts{shared_ + place.first};
    return SpanSums::In(layout_, place.queries, &parts).From(place.row, layout_);
  }
  SpanSums SumsOf(const CachedQueries& of, int64_t span) const {
    const int64_t first = of.sums + span * SpanSums::Floats(layout_, of.rows());
    return SumsAt({first, of.rows(), 0});
  }

  void RunTask(const Place& first, const Place& last, const CachedScratch& scratch) const {
    for (int64_t i = first.queries; i < last.queries + (last.span > 0 ? 1 : 0); ++i) {
      const CachedQueries& of = queries_[i];
      const Range spans{i == first.queries ? first.span : 0,
                        i == last.queries ? last.span : of.spans};
      const HeadRows rows = Rows(*of.segment, of.kv_head);
      KvLayer& cache = CacheOf(*of.segment, layer_);
      if (spans.last == of.spans && of.together < 0 && Together(of)) {
        AppendCached(rows, &cache, of.token, {0, of.tokens});
        AppendCachedDecay(rows, &cache, of.token, of.tokens);
      }
      if (of.together >= 0) GatherQueries(of, scratch.queries);
      const CachedHead head(rows, &cache, tiles_, of, far_weights_, scratch);
      if (of.sums >= 0) {
        for (int64_t span = spans.first; span < spans.last; ++span) {
          head.Sum(span, SumsOf(of, span));
        }
        continue;
      }
      head.Sum(0, scratch.total);
      for (int64_t span = 1; span < of.spans; ++span) {
        head.Sum(span, scratch.span);
        head.Join(scratch.span, scratch.total);
      }
      head.Write(scratch.total);
    }
  }

  // Joins the sums of spans and writes the outputs of the queries that have them.
  void Join() {
    std::vector<const CachedQueries*> joined;
    for (const CachedQueries& of : queries_) {
      if (of.sums >= 0 && of.together < 0) joined.push_back(&of);
    }
    const auto join = [&](int64_t i, int thread) {
      const CachedQueries& of = *joined[i];
      const CachedScratch scratch = Scratch(thread);
      const HeadRows rows = Rows(*of.segment, of.kv_head);
      const CachedHead head(rows, &CacheOf(*of.segment, layer_), tiles_, of, far_weights_, scratch);
      bool first = true;
      const auto add = [&](const SpanSums& sums) {
        first ? head.Begin(sums, scratch.total) : head.Join(sums, scratch.total);
        first = false;
      };
      if (of.earlier >= 0) {
        for (const SumsPlace& place : earlier_[of.earlier]) {
          const int64_t skipped = of.kv_head * SpanSums::Floats(layout_, place.queries);
          add(SumsAt({place.first + skipped, place.queries, place.row}));
        }
      }
      for (int64_t span = 0; span < of.spans; ++span) add(SumsOf(of, span));
      head.Write(scratch.total);
    };
    // A few take less time than threads need to meet.
    if (std::ssize(joined) >= context_.threads()) {
      context_.pool().ParallelFor(std::ssize(joined), join);
    } else {
      for (int64_t i = 0; i < std::ssize(joined); ++i) join(i, 0);
    }
  }

  Context& context_;
  const AttentionSpec& spec_;
  const HeadLayout& layout_;
  const int layer_;
  const std::span<const Segment> segments_;
  const AttentionInput& input_;
  float* const out_;
  const KeyTiles tiles_;
  int64_t scratch_floats_ = 0;
  std::vector<CachedQueries> queries_;
  // Of queries of several segments, of which a span is computed together: the segments.
  std::vector<Members> together_;
  // Of a segment among them: where these spans have their sums, of the first kv head, in order.
  std::vector<std::vector<SumsPlace>> earlier_;
  int64_t sums_ = 0;  // floats of the sums that are joined in the end
  float* shared_ = nullptr;
  const float* far_weights_ = nullptr;  // FarPart::weights
};

#include "kernels/cpu/isa_end.inc"
