// KV kinds: what a query reads of a KV cache, in tiles of keys at absolute positions, and the sums of a
// span of tiles. Included inside the region of isa_begin.h, after attention_update.h.
//
// A span is the tiles that begin in one range of 256 positions. Its sums begin at zero: the largest score
// so far (softmax) scales them, and a larger one rescales them. The sums of spans are joined in order, so
// that it makes no difference which tasks compute them. Other kinds than softmax have no largest score,
// and one span.

// Queries that are computed at a time.
constexpr int kCachedQueries = 48;

// Positions in which the tiles of a span begin.
constexpr int64_t kSpanPositions = 256;

// The tiles of a layer's keys: the panels of its blocks, counted from the first token of the sequence.
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

// Queries that are computed together: those of `tokens` tokens of a segment from `row` on, in `heads`
// neighbouring heads of one group. They read the same tiles: their tokens are in one tile, and so are the
// first ones of their windows.
struct CachedQueries {
  const Segment* segment;
  int kv_head;
  int64_t row;
  int tokens;
  int first_head, heads;
  int64_t token;  // position of the first token
  // The tiles [0, sinks), which lie before `window`, and [window, last].
  int64_t sinks, window, last;
  // The spans of these tiles: the first `sink_spans` ones, and `spans` in all.
  int64_t sink_spans, spans;

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
  float* values;        // [kCachedQueries][dp]: of weights times values
  float* denominators;  // of weights
  float* tops;          // the largest scores; softmax

  static SpanSums In(const HeadLayout& layout, FloatParts* parts) {
    constexpr int64_t kPadded = (kCachedQueries + kLanes - 1) / kLanes * kLanes;
    return {parts->Next(kCachedQueries * layout.padded_dim), parts->Next(kPadded),
            parts->Next(kPadded)};
  }
};

// A thread's memory for queries.
struct CachedScratch {
  float *scores, *queries;
  float *keys, *values;  // of a tile, widened
  SpanSums total, span;

  static CachedScratch In(const AttentionSpec& spec, const HeadLayout& layout, FloatParts* parts) {
    return {parts->Next(kCachedQueries * kKeyPanel),
            parts->Next(spec.query_group() > 1 ? kCachedQueries * spec.near_dim() : 0),
            parts->Next(spec.cache_width() < 4 ? spec.near_dim() * kKeyPanel : 0),
            parts->Next(spec.cache_width() < 4 ? kKeyPanel * layout.padded_dim : 0),
            SpanSums::In(layout, parts),
            SpanSums::In(layout, parts)};
  }
};

PS_INLINE float LargestOf(const float* scores, int64_t count, float top) {
  int64_t s = 0;
  if (count >= kLanes) {
    V tops = Set1(top);
    for (; s + kLanes <= count; s += kLanes) tops = Max(Load(scores + s), tops);
    top = ReduceMax(tops);
  }
  for (; s < count; ++s) top = std::max(top, scores[s]);
  return top;
}

// Weights of a tile's tokens of a layer with a window: those of tokens from `sinks` to `first`, both
// counted in the tile, are zero.
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
             const CachedScratch& scratch)
      : rows_(rows),
        cache_(*cache),
        tiles_(tiles),
        of_(of),
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
    for (V& lane : lanes) lane = Zero();
    std::fill_n(sums.tops, of_.rows(), softmax() ? std::numeric_limits<float>::lowest() : 0.0f);
    std::fill_n(sums.values, of_.rows() * rows_.layout.padded_dim, 0.0f);
    for (int64_t tile = tiles_.FirstTile(span); tile < end && tile <= of_.last; ++tile) {
      if (tile >= of_.sinks && tile < of_.window) tile = of_.window;
      if (tile < end) AddTile(tile, sums, lanes);
    }
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

  void Write(const SpanSums& sums) const {
    for (int m = 0; m < of_.rows(); ++m) {
      WriteOutput(rows_, of_.row + m / of_.heads, of_.first_head + m % of_.heads,
                  sums.values + m * rows_.layout.padded_dim, sums.denominators[m]);
    }
  }

 private:
  bool softmax() const { return rows_.spec.kind == AttentionKind::kSoftmax; }

  // The queries, token by token: where they lie, or a copy if no stride reaches all.
  QueryTile Queries() const {
    const int dim = rows_.spec.near_dim();
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

  // The keys and values of a tile. Products prefetch the next one.
  template <typename Element>
  NearBlock<Element, Element> Block(int64_t tile) const {
    const int64_t next = tile + 1 >= of_.window && tile < of_.last ? tile + 1 : tile;
    const Element *keys = Keys<Element>(tile), *values = Values<Element>(tile);
    return {{keys, rows_.spec.near_dim(), {keys, Keys<Element>(next)}},
            kKeyPanel,
            values,
            rows_.layout.padded_dim,
            {values, Values<Element>(next)}};
  }

  // The keys and values of a tile as float32.
  template <typename Element>
  NearBlock<float, float> Widen(int64_t tile) const {
    const int64_t dim = rows_.spec.near_dim(), dp = rows_.layout.padded_dim;
    if constexpr (std::is_same_v<Element, F32>) {
      return {{&Keys<F32>(tile)->value, dim}, kKeyPanel, &Values<F32>(tile)->value, dp};
    } else {
      WidenElements(Keys<Element>(tile), dim * kKeyPanel, scratch_.keys);
      WidenElements(Values<Element>(tile), tiles_.Size(tile) * dp, scratch_.values);
      return {{scratch_.keys, dim}, kKeyPanel, scratch_.values, dp};
    }
  }

  // Multiplies the scores or weights of a query by the scales of a tile's keys or values.
  static void MultiplyBy(const float* scales, int64_t tokens, float* row) {
    for (int64_t s = 0; s < tokens; s += kLanes)
      Store(Mul(Load(row + s), Load(scales + s)), row + s);
  }

  // The largest score that a token sees of the first `limit` ones of a tile, or top.
  float Largest(const WindowWeights& window, const float* scores, int64_t limit, float top) const {
    if (rows_.spec.window == 0) return LargestOf(scores, limit, top);
    const int64_t sinks = std::clamp<int64_t>(window.sinks, 0, limit);
    const int64_t first = std::clamp<int64_t>(window.first, sinks, limit);
    return LargestOf(scores + first, limit - first, LargestOf(scores, sinks, top));
  }

  // Rescales the sums of a query for a larger score.
  void Raise(float top, int m, const SpanSums& sums, V* lane) const {
    if (!(top > sums.tops[m])) return;
    const V factor = Exp(Mul(Set1(sums.tops[m] - top), Set1(weights_[0].scale)));
    *lane = Mul(*lane, factor);
    const int64_t dp = rows_.layout.padded_dim;
    float* values = sums.values + m * dp;
    for (int64_t c = 0; c < dp; c += kLanes) Store(Mul(Load(values + c), factor), values + c);
    sums.tops[m] = top;
  }

  void AddTile(int64_t tile, const SpanSums& sums, V* lanes) const {
    switch (rows_.spec.cache_width()) {
      case 1:
        return AddElements<int8_t>(tile, sums, lanes);
      case 2:
        return AddElements<F16>(tile, sums, lanes);
      default:
        return AddElements<F32>(tile, sums, lanes);
    }
  }

  // What many queries read is widened first. The bits are the same.
  template <typename Element>
  void AddElements(int64_t tile, const SpanSums& sums, V* lanes) const {
    if (of_.rows() > kTileRows<kMaxTileVectors>) {
      AddBlock(tile, Widen<Element>(tile), sums, lanes);
    } else {
      AddBlock(tile, Block<Element>(tile), sums, lanes);
    }
  }

  template <typename Block>
  void AddBlock(int64_t tile, const Block& block, const SpanSums& sums, V* lanes) const {
    const AttentionSpec& spec = rows_.spec;
    const int64_t start = tiles_.First(tile), first = of_.token - start;
    // Of a tile before the window only sinks are read.
    const int64_t size = tile < of_.window
                             ? std::min<int64_t>(tiles_.Size(tile), spec.sinks - start)
                             : tiles_.Size(tile);
    const float *key_scales = nullptr, *value_scales = nullptr;
    if (spec.cache_scales()) {
      const int64_t in_block = tiles_.Panel(tile) * kKeyPanel;
      key_scales = cache_.KeyScales(tiles_.Block(tile), rows_.head) + in_block;
      value_scales = cache_.ValueScales(tiles_.Block(tile), rows_.head) + in_block;
    }
    Scores(queries_, block, Limit(first, of_.tokens - 1, size), scratch_.scores);
    for (int t = 0, m = 0; t < of_.tokens; ++t) {
      const int64_t limit = Limit(first, t, size);
      const WindowWeights window{spec.sinks - start, spec.FirstVisible(of_.token + t) - start};
      for (int h = 0; h < of_.heads; ++h, ++m) {
        float* scores = scratch_.scores + m * kKeyPanel;
        if (key_scales != nullptr) MultiplyBy(key_scales, limit, scores);
        if (softmax()) Raise(Largest(window, scores, limit, sums.tops[m]), m, sums, &lanes[m]);
        if (spec.window == 0) {
          WeighRow(weights_[h], NoDecay(), sums.tops[m], limit, scores, &lanes[m]);
        } else {
          WeighRow(weights_[h], window, sums.tops[m], limit, scores, &lanes[m]);
        }
        if (value_scales != nullptr) MultiplyBy(value_scales, limit, scores);
      }
    }
    AddValues(of_.rows(), first, size, scratch_.scores, block,
              static_cast<int>(rows_.layout.padded_dim / kLanes), sums.values, of_.heads);
  }

  const HeadRows& rows_;
  KvLayer& cache_;
  const KeyTiles& tiles_;
  const CachedQueries& of_;
  const CachedScratch& scratch_;
  const QueryTile queries_;
  NearWeight weights_[kCachedQueries];  // of each head
};
