// KV kinds: what a query reads of a KV cache, in tiles of keys at absolute positions, and the sums
// of a span of tiles.
//
// A span is the tiles that begin in one range of 256 positions. Its sums begin at zero: the largest
// score so far (softmax) scales them, and a larger one rescales them. The sums of spans are joined
// in order, so that it makes no difference which tasks compute them. Other kinds than softmax have
// no largest score, and one span.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention_decay.h"
#include "kernels/cpu/attention_elements.h"
#include "kernels/cpu/attention_near.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"
#include "kernels/segment.h"

#include "kernels/cpu/isa_begin.inc"

// Queries that are computed at a time.
constexpr int kCachedQueries = 48;

// Tiles whose scores are in memory at a time: of each, those of as many queries as leave room for.
constexpr int kStripTiles = 16;

// Positions in which the tiles of a span begin.
constexpr int64_t kSpanPositions = 256;

// The tiles of a layer's keys: the panels of its blocks, counted from the first token of the
// sequence.
class KeyTiles {
 public:
  explicit KeyTiles(const AttentionSpec& spec)
      : block_(spec.block),
        in_block_((block_ + kKeyPanel - 1) / kKeyPanel),
        spans_(spec.kind == AttentionKind::kSoftmax) {}

  int64_t Of(int64_t token) const {
    return token / block_ * in_block_ + token % block_ / kKeyPanel;
  }
  int64_t Block(int64_t tile) const { return tile / in_block_; }
  int64_t Panel(int64_t tile) const { return tile % in_block_; }
  // The first token of a tile.
  int64_t First(int64_t tile) const { return Block(tile) * block_ + Panel(tile) * kKeyPanel; }
  int64_t Size(int64_t tile) const {
    return std::min<int64_t>(kKeyPanel, block_ - Panel(tile) * kKeyPanel);
  }
  int64_t SpanOf(int64_t tile) const { return spans_ ? First(tile) / kSpanPositions : 0; }
  // The first tile of a span.
  int64_t FirstTile(int64_t span) const {
    if (!spans_) return span == 0 ? 0 : std::numeric_limits<int64_t>::max();
    const int64_t tile = Of(span * kSpanPositions);
    return First(tile) < span * kSpanPositions ? tile + 1 : tile;
  }

 private:
  int64_t block_, in_block_;
  bool spans_;
};

// Queries that are computed together: those of `tokens` tokens of a segment from `row` on, in
// `heads` neighbouring heads of one group. They read the same tiles: their tokens are in one tile,
// and so are the first ones of their windows.
struct CachedQueries {
  const Segment* segment;
  int kv_head;
  int64_t row;
  int tokens;
  int first_head, heads;
  int64_t token;  // position of the first token
  // The tiles [0, sinks), which lie before `window`, and [window, last].
  int64_t sinks = 0, window = 0, last = 0;
  // The spans of these tiles: the first `sink_spans` ones, and `spans` in all.
  int64_t sink_spans = 0, spans = 0;
  int64_t sums = -1;  // where the sums of its spans begin, if they are joined in the end
  // attention_divided.h: of queries of several segments, and of one segment's that are among such
  // ones.
  int64_t together = -1, earlier = -1;

  int rows() const { return tokens * heads; }

  void FindTiles(const AttentionSpec& spec, const KeyTiles& tiles) {
    window = tiles.Of(spec.FirstVisible(token));
    last = tiles.Of(token);
    sinks = spec.sinks == 0 ? 0 : std::min(tiles.Of(spec.sinks - 1) + 1, window);
    const int64_t window_span = tiles.SpanOf(window);
    sink_spans = sinks == 0 ? 0 : std::min(tiles.SpanOf(sinks - 1) + 1, window_span);
    spans = sink_spans + tiles.SpanOf(last) + 1 - window_span;
  }
  // The span at place `i` of `spans`.
  int64_t Span(const KeyTiles& tiles, int64_t i) const {
    return i < sink_spans ? i : tiles.SpanOf(window) + i - sink_spans;
  }
};

// How the queries of a kv head are cut.
struct CachedTiling {
  int heads, tokens;  // at most

  static CachedTiling Of(const AttentionSpec& spec) {
    const int group = spec.query_group(), parts = (group + kCachedQueries - 1) / kCachedQueries;
    const int heads = (group + parts - 1) / parts;
    return {heads, kCachedQueries / heads};
  }
};

// The sums of a span, or of several, for each query.
struct SpanSums {
  float* values;        // [queries][dp]: of weights times values
  float* denominators;  // of weights
  float* tops;          // the largest scores; softmax

  static SpanSums In(const HeadLayout& layout, int64_t queries, FloatParts* parts) {
    // Whole vectors from any query on.
    const int64_t padded = (queries + 2 * kLanes - 1) / kLanes * kLanes;
    return {parts->Next(queries * layout.padded_dim), parts->Next(padded), parts->Next(padded)};
  }
  static int64_t Floats(const HeadLayout& layout, int64_t queries) {
    FloatParts parts{nullptr};
    In(layout, queries, &parts);
    return parts.size;
  }
  // The sums of the queries from `row` on.
  SpanSums From(int row, const HeadLayout& layout) const {
    return {values + row * layout.padded_dim, denominators + row, tops + row};
  }
};

// A thread's memory for queries.
struct CachedScratch {
  float *scores, *queries;
  SpanSums total, span;

  static CachedScratch In(const AttentionSpec& spec, const HeadLayout& layout, FloatParts* parts) {
    return {parts->Next(kCachedQueries * kKeyPanel), parts->Next(kCachedQueries * spec.near_dim()),
            SpanSums::In(layout, kCachedQueries, parts),
            SpanSums::In(layout, kCachedQueries, parts)};
  }
};

// Weights of a tile's tokens of a layer with a window: those of tokens from `sinks` to `first`,
// both counted in the tile, are zero.
struct WindowWeights {
  int64_t sinks, first;

  __attribute__((always_inline)) V operator()(V weights, int64_t s) const {
    if (s >= first || s + kLanes <= sinks) return weights;
    const V of_sinks = ZeroUnless(FirstLanes(sinks - s), weights);
    return first >= s + kLanes ? of_sinks : Select(FirstLanes(first - s), of_sinks, weights);
  }
  static Mask FirstLanes(int64_t count) {
    return FirstN(static_cast<int>(std::clamp<int64_t>(count, 0, kLanes)));
  }
};

// The queries of one kv head.
class CachedHead {
 public:
  CachedHead(const HeadRows& rows, KvLayer* cache, const KeyTiles& tiles, const CachedQueries& of,
             const float* far_weights, const CachedScratch& scratch)
      : rows_(rows),
        cache_(*cache),
        tiles_(tiles),
        of_(of),
        far_weights_(far_weights),
        scratch_(scratch),
        queries_(Queries()) {
    for (int h = 0; h < of.heads; ++h) {
      weights_[h] = NearWeight::Of(rows.spec, rows.Coefficients(of.first_head + h));
    }
  }

  // Computes the sums of the span at place `i`.
  void Sum(int64_t i, const SpanSums& sums) const {
    const int64_t span = of_.Span(tiles_, i), end = tiles_.FirstTile(span + 1);
    V lanes[kCachedQueries];  // of the denominators
    for (int m = 0; m < of_.rows(); ++m) lanes[m] = Zero();
    std::fill_n(sums.tops, of_.rows(), softmax() ? std::numeric_limits<float>::lowest() : 0.0f);
    std::fill_n(sums.values, of_.rows() * rows_.layout.padded_dim, 0.0f);
    Strip strip;
    const int room = std::min(kStripTiles, kCachedQueries / of_.rows());
    for (int64_t tile = tiles_.FirstTile(span); tile < end && tile <= of_.last; ++tile) {
      if (tile >= of_.sinks && tile < of_.window) tile = of_.window;
      if (tile >= end) break;
      strip.tiles[strip.size++] = tile;
      if (strip.size < room) continue;
      AddStrip(strip, sums, lanes);
      strip.size = 0;
      strip.first = false;
    }
    if (strip.size > 0) AddStrip(strip, sums, lanes);
    for (int m = 0; m < of_.rows(); ++m) sums.denominators[m] = ReduceAdd(lanes[m]);
  }

  // Adds the sums of a later span. Only softmax has more than one.
  void Join(const SpanSums& later, const SpanSums& sums) const {
    const int64_t dp = rows_.layout.padded_dim;
    const V scale = Set1(weights_[0].scale);
    alignas(64) float kept[kLanes], added[kLanes];
    for (int first = 0; first < of_.rows(); first += kLanes) {
      const V top = Load(sums.tops + first), later_top = Load(later.tops + first);
      const V larger = Max(top, later_top);
      const V keep = Exp(Mul(Sub(top, larger), scale)),
              add = Exp(Mul(Sub(later_top, larger), scale));
      Store(larger, sums.tops + first);
      Store(Fma(Load(later.denominators + first), add, Mul(Load(sums.denominators + first), keep)),
            sums.denominators + first);
      Store(keep, kept);
      Store(add, added);
      for (int m = first; m < std::min(first + kLanes, of_.rows()); ++m) {
        const V k = Set1(kept[m - first]), a = Set1(added[m - first]);
        for (int64_t c = m * dp; c < (m + 1) * dp; c += kLanes) {
          Store(Fma(Load(later.values + c), a, Mul(Load(sums.values + c), k)), sums.values + c);
        }
      }
    }
  }

  // Makes `sums` those of an earlier span.
  void Begin(const SpanSums& earlier, const SpanSums& sums) const {
    std::copy_n(earlier.values, of_.rows() * rows_.layout.padded_dim, sums.values);
    std::copy_n(earlier.denominators, of_.rows(), sums.denominators);
    std::copy_n(earlier.tops, of_.rows(), sums.tops);
  }

  void Write(const SpanSums& sums) const {
    for (int m = 0; m < of_.rows(); ++m) {
      const int64_t row = of_.row + m / of_.heads;
      const int head = of_.first_head + m % of_.heads;
      if (far_weights_ != nullptr) AddFarPart(row, head, m, sums);
      WriteOutput(rows_, row, head, sums.values + m * rows_.layout.padded_dim,
                  sums.denominators[m]);
    }
  }

 private:
  // Tiles that are read and adjacent. Each phase of the work runs over all of them,
  // because each phase waits for results of the one before it.
  struct Strip {
    int64_t tiles[kStripTiles];
    int size = 0;
    bool first = true;  // whether they are the first ones of their span
  };

  // Of each tile of a strip and each query; softmax, else 0.
  struct Tops {
    float scores[kCachedQueries] = {};  // the largest up to this tile
    float factors[kCachedQueries];      // what sums of earlier tiles are multiplied by
  };

  // Adds the far part of a query, whose sums are in the place of its output, to its sums. Both are
  // scaled to the larger one: the far part by a power of two near its weight.
  void AddFarPart(int64_t row, int head, int m, const SpanSums& sums) const {
    float* far_mass = rows_.input.far_mass == nullptr ? nullptr : rows_.FarMass(row, head);
    if (far_mass != nullptr) *far_mass = 0;
    constexpr float kLog2 = 0.693147181f;
    constexpr float kMinTop = -60;  // e^60 times a weight below e^-60 is a float32
    const float weight = far_weights_[(rows_.first_row + row) * rows_.spec.heads + head];
    if (!(weight > 0)) return;  // no key has one, but for roundings
    const auto factor = static_cast<float>(rows_.spec.FarFactor(of_.token + row - of_.row));
    const float near_top = sums.tops[m] * weights_[0].scale;
    const float far_top = static_cast<float>(std::ilogb(weight * factor)) * kLog2;
    const float top = std::max({near_top, far_top, kMinTop});
    const V keep = Exp(Set1(near_top - top)), add = Mul(Exp(Set1(-top)), Set1(factor));
    const float* far = rows_.Out(row, head);
    float* values = sums.values + m * rows_.layout.padded_dim;
    for (int i = 0; i < rows_.spec.head_dim; i += kLanes) {
      const Mask mask = FirstN(std::min(kLanes, rows_.spec.head_dim - i));
      Store(Fma(LoadMasked(far + i, mask), add, Mul(Load(values + i), keep)), values + i);
    }
    alignas(64) float far_part[kLanes], both[kLanes];
    Store(Mul(Set1(weight), add), far_part);
    Store(Fma(Set1(sums.denominators[m]), keep, Load(far_part)), both);
    sums.denominators[m] = both[0];
    if (far_mass != nullptr) *far_mass = far_part[0] / both[0];
  }

  bool softmax() const { return rows_.spec.kind == AttentionKind::kSoftmax; }

  // The queries, token by token: where they lie, or a copy if no stride reaches all.
  QueryTile Queries() const {
    const int dim = rows_.spec.near_dim();
    if (of_.together >= 0) return {scratch_.queries, dim, of_.rows(), dim};  // copied already
    const float* first = rows_.NearQuery(of_.row, of_.first_head);
    if (of_.heads == 1) return {first, rows_.near_query_stride(), of_.tokens, dim};
    if (of_.tokens == 1) return {first, dim, of_.heads, dim};
    const int64_t floats = int64_t{of_.heads} * dim;
    for (int t = 0; t < of_.tokens; ++t) {
      std::copy_n(first + t * rows_.near_query_stride(), floats, scratch_.queries + t * floats);
    }
    return {scratch_.queries, dim, of_.rows(), dim};
  }

  template <typename Element>
  const Element* Keys(int64_t tile) const {
    return cache_.Keys<Element>(tiles_.Block(tile), rows_.head) +
           KeyIndex(rows_.spec.near_dim(), 0, tiles_.Panel(tile) * kKeyPanel);
  }
  template <typename Element>
  const Element* Values(int64_t tile) const {
    return cache_.Values<Element>(tiles_.Block(tile), rows_.head) +
           tiles_.Panel(tile) * kKeyPanel * rows_.layout.padded_dim;
  }

  // The tile that is probably read after `tile`.
  int64_t Next(int64_t tile) const {
    return tile + 1 >= of_.window && tile < of_.last ? tile + 1 : tile;
  }

  // The keys and values of a tile. Products prefetch the next one.
  template <typename Element>
  NearBlock<Element, Element> Block(int64_t tile) const {
    const int64_t next = Next(tile);
    return {{Keys<Element>(tile), rows_.spec.near_dim(), {nullptr, Keys<Element>(next)}},
            kKeyPanel,
            Values<Element>(tile),
            rows_.layout.padded_dim,
            {nullptr, Values<Element>(next)}};
  }

  // Multiplies the scores or weights of a query by the scales of a tile's keys or values.
  static void MultiplyBy(const float* scales, int64_t tokens, float* row) {
    for (int64_t s = 0; s < tokens; s += kLanes)
      Store(Mul(Load(row + s), Load(scales + s)), row + s);
  }

  // Of a tile, what its tokens are counted from and how many of them are read: only sinks of one
  // before the window.
  struct TileRange {
    int64_t start, size;
  };
  TileRange RangeOf(int64_t tile) const {
    const int64_t start = tiles_.First(tile), size = tiles_.Size(tile);
    return {start, tile < of_.window ? std::min(size, rows_.spec.sinks - start) : size};
  }
  WindowWeights WindowOf(int64_t start, int64_t token) const {
    return {rows_.spec.sinks - start, rows_.spec.FirstVisible(token) - start};
  }

  void AddStrip(const Strip& strip, const SpanSums& sums, V* lanes) const {
    switch (rows_.spec.cache_width()) {
      case 1:
        return AddElements<int8_t>(strip, sums, lanes);
      case 2:
        return AddElements<F16>(strip, sums, lanes);
      default:
        return AddElements<F32>(strip, sums, lanes);
    }
  }

  template <typename Element>
  void AddElements(const Strip& strip, const SpanSums& sums, V* lanes) const {
    for (int i = 0; i < strip.size; ++i) {
      AddScores(strip.tiles[i], i, Block<Element>(strip.tiles[i]));
    }
    Tops tops;
    if (softmax()) Raise(strip, sums, &tops);
    for (int i = 0; i < strip.size; ++i) Weigh(strip.tiles[i], i, tops, lanes);
    for (int i = 0; i < strip.size; ++i) {
      if (softmax() && (i > 0 || !strip.first)) Rescale(tops.factors + i * of_.rows(), sums);
      AddValuesOf(strip.tiles[i], i, Block<Element>(strip.tiles[i]), sums);
    }
  }

  float* ScoresOf(int place, int m) const {
    return scratch_.scores + (place * of_.rows() + m) * kKeyPanel;
  }

  template <typename Block>
  void AddScores(int64_t tile, int place, const Block& block) const {
    const TileRange range = RangeOf(tile);
    const int64_t first = of_.token - range.start;
    Scores(queries_, block, Limit(first, of_.tokens - 1, range.size), ScoresOf(place, 0));
    if (!rows_.spec.cache_scales()) return;
    const float* scales =
        cache_.KeyScales(tiles_.Block(tile), rows_.head) + tiles_.Panel(tile) * kKeyPanel;
    for (int m = 0; m < of_.rows(); ++m) {
      MultiplyBy(scales, Limit(first, m / of_.heads, range.size), ScoresOf(place, m));
    }
  }

  // The largest score that a query sees of the first `limit` ones of a tile, or top.
  float Largest(const WindowWeights& window, const float* scores, int64_t limit, float top) const {
    V tops = Set1(top);
    const V least = tops;
    for (int64_t s = 0; s < limit; s += kLanes) {
      V x = Load(scores + s);
      if (s + kLanes > limit) x = Select(WindowWeights::FirstLanes(limit - s), x, least);
      if (rows_.spec.window > 0 && s < window.first) {
        const V of_sinks = Select(WindowWeights::FirstLanes(window.sinks - s), x, least);
        x = Select(WindowWeights::FirstLanes(window.first - s), of_sinks, x);
      }
      tops = Max(x, tops);
    }
    return ReduceMax(tops);
  }

  // Finds the largest scores, and what they rescale sums by: without a larger score, 1.
  void Raise(const Strip& strip, const SpanSums& sums, Tops* tops) const {
    const int rows = of_.rows();
    float before[kCachedQueries] = {};
    for (int i = 0, j = 0; i < strip.size; ++i) {
      const TileRange range = RangeOf(strip.tiles[i]);
      for (int m = 0; m < rows; ++m, ++j) {
        const int token = m / of_.heads;
        before[j] = i == 0 ? sums.tops[m] : tops->scores[j - rows];
        tops->scores[j] = Largest(WindowOf(range.start, of_.token + token), ScoresOf(i, m),
                                  Limit(of_.token - range.start, token, range.size), before[j]);
      }
    }
    const V scale = Set1(weights_[0].scale);
    for (int j = 0; j < strip.size * rows; j += kLanes) {
      Store(Exp(Mul(Sub(Load(before + j), Load(tops->scores + j)), scale)), tops->factors + j);
    }
    std::copy_n(tops->scores + (strip.size - 1) * rows, rows, sums.tops);
  }

  // Turns the scores of a tile into weights.
  void Weigh(int64_t tile, int place, const Tops& tops, V* lanes) const {
    const TileRange range = RangeOf(tile);
    const float* scales = nullptr;
    if (rows_.spec.cache_scales()) {
      scales = cache_.ValueScales(tiles_.Block(tile), rows_.head) + tiles_.Panel(tile) * kKeyPanel;
    }
    for (int m = 0; m < of_.rows(); ++m) {
      const int token = m / of_.heads, j = place * of_.rows() + m;
      const NearWeight& weight = weights_[m % of_.heads];
      const int64_t limit = Limit(of_.token - range.start, token, range.size);
      float* scores = ScoresOf(place, m);
      if (softmax()) lanes[m] = Mul(lanes[m], Set1(tops.factors[j]));
      if (rows_.spec.window == 0) {
        WeighRow(weight, NoDecay(), tops.scores[j], limit, scores, &lanes[m]);
      } else {
        WeighRow(weight, WindowOf(range.start, of_.token + token), tops.scores[j], limit, scores,
                 &lanes[m]);
      }
      if (scales != nullptr) MultiplyBy(scales, limit, scores);
    }
  }

  void Rescale(const float* factors, const SpanSums& sums) const {
    const int64_t dp = rows_.layout.padded_dim;
    for (int m = 0; m < of_.rows(); ++m) {
      if (factors[m] == 1.0f) continue;
      const V factor = Set1(factors[m]);
      float* values = sums.values + m * dp;
      for (int64_t c = 0; c < dp; c += kLanes) Store(Mul(Load(values + c), factor), values + c);
    }
  }

  template <typename Block>
  void AddValuesOf(int64_t tile, int place, const Block& block, const SpanSums& sums) const {
    const TileRange range = RangeOf(tile);
    AddValues(of_.rows(), of_.token - range.start, range.size, ScoresOf(place, 0), block,
              static_cast<int>(rows_.layout.padded_dim / kLanes), sums.values, of_.heads);
  }

  const HeadRows& rows_;
  KvLayer& cache_;
  const KeyTiles& tiles_;
  const CachedQueries& of_;
  const float* far_weights_;
  const CachedScratch& scratch_;
  const QueryTile queries_;
  NearWeight weights_[kCachedQueries];  // of each head
};

#include "kernels/cpu/isa_end.inc"
