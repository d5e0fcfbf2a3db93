// KV kinds: queries read the blocks of a KV cache up to their own: all, or those of their window and the
// sinks. Included inside the region of isa_begin.h, after attention_update.h.

// Queries that are computed at a time: those of `tokens` tokens from `row` on, in `heads` neighbouring
// heads of one group. They read the keys and values of their kv head once.
struct CachedTile {
  int64_t row;
  int tokens;
  int first_head, heads;
  int64_t token;  // position of the first token

  int rows() const { return tokens * heads; }
};

// How the queries of a kv head are cut into tiles.
struct CachedTiling {
  int heads, tokens;  // of a tile, at most

  static CachedTiling Of(const AttentionSpec& spec) {
    const int group = spec.query_group(), parts = (group + kQueryTile - 1) / kQueryTile;
    const int heads = (group + parts - 1) / parts;
    return {heads, kQueryTile / heads};
  }
};

// A thread's memory for a tile.
struct CachedScratch {
  // The largest score must be known before the first weight. Scores of a tile are kept until then if
  // they fit into kKeptScores floats, else computed again.
  static constexpr int64_t kKeptScores = 1 << 18;

  float *scores, *sums, *queries;

  static CachedScratch In(const AttentionSpec& spec, const HeadLayout& layout, FloatParts* parts) {
    const int64_t kept = spec.kind == AttentionKind::kSoftmax ? kKeptScores : 0;
    return {parts->Next(std::max(kQueryTile * layout.padded_block, kept)),
            parts->Next(kQueryTile * layout.padded_dim),
            parts->Next(spec.query_group() > 1 ? kQueryTile * spec.near_dim() : 0)};
  }
};

static int64_t CachedFloats(const AttentionSpec& spec, const HeadLayout& layout) {
  FloatParts parts{nullptr};
  CachedScratch::In(spec, layout, &parts);
  return parts.size;
}

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

// Weights of a block's tokens of a layer with a window: those of tokens from `sinks` to `first`, both
// counted in the block, are zero.
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

// The blocks that a tile reads, in order.
class CachedBlocks {
 public:
  // first, last: tokens at the start and at the end of the tile. The windows of all begin in one block.
  CachedBlocks(const AttentionSpec& spec, int64_t first, int64_t last)
      : spec_(spec),
        window_(spec.FirstVisible(first) / spec.block),
        sinks_(std::min<int64_t>((spec.sinks + spec.block - 1) / spec.block, window_)),
        count_(sinks_ + last / spec.block + 1 - window_) {}

  int64_t count() const { return count_; }
  // The block at place `i`, counted from the first token of the sequence.
  int64_t At(int64_t i) const { return i < sinks_ ? i : window_ + i - sinks_; }
  // Tokens of the block at place `i` that are read.
  int64_t Size(int64_t i) const {
    return i < sinks_ ? std::min<int64_t>(spec_.block, spec_.sinks - i * spec_.block) : spec_.block;
  }

 private:
  const AttentionSpec& spec_;
  int64_t window_;  // the first block of the window
  int64_t sinks_;   // blocks before it that hold sinks
  int64_t count_;
};

// One kv head.
struct KvHead {
  const HeadRows& rows;
  KvLayer* cache;
  const CachedScratch& scratch;

  // scores_row: floats from the scores of a query to those of the next one.
  NearBlock<float, float> Block(int64_t index, int64_t scores_row) const {
    return {{cache->Keys(index, rows.head), rows.spec.near_dim()},
            scores_row,
            cache->Values(index, rows.head),
            rows.layout.padded_dim};
  }

  // The queries of a tile, token by token: where they lie, or a copy if no stride reaches all.
  QueryTile Queries(const CachedTile& tile) const {
    const int dim = rows.spec.near_dim();
    const float* first = rows.NearQuery(tile.row, tile.first_head);
    if (tile.heads == 1) return {first, rows.near_query_stride(), tile.tokens, dim};
    if (tile.tokens == 1) return {first, dim, tile.heads, dim};
    const int64_t floats = int64_t{tile.heads} * dim;
    for (int t = 0; t < tile.tokens; ++t) {
      std::copy_n(first + t * rows.near_query_stride(), floats, scratch.queries + t * floats);
    }
    return {scratch.queries, dim, tile.rows(), dim};
  }

  // Calls fn(m, token, limit) for the rows of a tile. limit: how many tokens the row's token may attend to
  // of a block of which `size` tokens are read and whose first one is `first` tokens before the tile's.
  template <typename Fn>
  static void ForRows(const CachedTile& tile, int64_t first, int64_t size, const Fn& fn) {
    for (int t = 0, m = 0; t < tile.tokens; ++t) {
      const int64_t limit = Limit(first, t, size);
      for (int h = 0; h < tile.heads; ++h) fn(m++, tile.token + t, limit);
    }
  }

  // What token `token` sees of block `index`, if the layer has a window.
  WindowWeights Window(int64_t index, int64_t token) const {
    const int64_t start = index * rows.spec.block;
    return {rows.spec.sinks - start, rows.spec.FirstVisible(token) - start};
  }

  // The largest score that a token sees of the first `limit` ones of block `index`, or top.
  float Largest(int64_t index, int64_t token, const float* scores, int64_t limit, float top) const {
    if (rows.spec.window == 0) return LargestOf(scores, limit, top);
    const WindowWeights window = Window(index, token);
    const int64_t sinks = std::clamp<int64_t>(window.sinks, 0, limit);
    const int64_t first = std::clamp<int64_t>(window.first, sinks, limit);
    return LargestOf(scores + first, limit - first, LargestOf(scores, sinks, top));
  }

  void Run(const CachedTile& tile) const {
    const AttentionSpec& spec = rows.spec;
    const int64_t block = spec.block, padded = rows.layout.padded_block;
    const CachedBlocks blocks(spec, tile.token, tile.token + tile.tokens - 1);
    const bool softmax = spec.kind == AttentionKind::kSoftmax;
    const bool keeps =
        softmax && tile.rows() * blocks.count() * padded <= CachedScratch::kKeptScores;
    const int64_t scores_row = keeps ? blocks.count() * padded : padded;
    const QueryTile queries = Queries(tile);
    // Computes the scores of a block and returns where they are.
    const auto score = [&](int64_t i) {
      float* scores = scratch.scores + (keeps ? i * padded : 0);
      const int64_t index = blocks.At(i);
      Scores(queries, Block(index, scores_row),
             Limit(tile.token - index * block, tile.tokens - 1, blocks.Size(i)), scores);
      return scores;
    };
    float tops[kQueryTile] = {};
    if (softmax) {  // a maximum is exact in any order
      std::fill_n(tops, tile.rows(), -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < blocks.count(); ++i) {
        const int64_t index = blocks.At(i);
        const float* scores = score(i);
        ForRows(tile, tile.token - index * block, blocks.Size(i),
                [&](int m, int64_t token, int64_t limit) {
                  tops[m] = Largest(index, token, scores + m * scores_row, limit, tops[m]);
                });
      }
    }
    V lanes[kQueryTile];
    for (V& lane : lanes) lane = Zero();
    NearWeight weights[kQueryTile];  // of each head
    for (int h = 0; h < tile.heads; ++h) {
      weights[h] = NearWeight::Of(spec, rows.Coefficients(tile.first_head + h));
    }
    std::fill_n(scratch.sums, tile.rows() * rows.layout.padded_dim, 0.0f);
    for (int64_t i = 0; i < blocks.count(); ++i) {
      const int64_t index = blocks.At(i), first = tile.token - index * block;
      float* scores = keeps ? scratch.scores + i * padded : score(i);
      ForRows(tile, first, blocks.Size(i), [&](int m, int64_t token, int64_t limit) {
        const NearWeight& weight = weights[m % tile.heads];
        float* row = scores + m * scores_row;
        if (spec.window == 0) {
          WeighRow(weight, NoDecay(), tops[m], limit, row, &lanes[m]);
        } else {
          WeighRow(weight, Window(index, token), tops[m], limit, row, &lanes[m]);
        }
      });
      AddValues(tile.rows(), first, blocks.Size(i), scores, Block(index, scores_row),
                static_cast<int>(rows.layout.padded_dim / kLanes), scratch.sums, tile.heads);
    }
    for (int m = 0; m < tile.rows(); ++m) {
      WriteOutput(rows, tile.row + m / tile.heads, tile.first_head + m % tile.heads,
                  scratch.sums + m * rows.layout.padded_dim, ReduceAdd(lanes[m]));
    }
  }
};

// Stores the keys and values of a range of the rows of a segment after `position` tokens. The cache has
// their blocks.
static void AppendCached(const HeadRows& rows, KvLayer* cache, int64_t position,
                         const Range& range) {
  for (int64_t row = range.first; row < range.last;) {
    const SegmentInBlock run = RowsInBlock(rows.spec, position, row, range.last);
    const int64_t block = (position + row) / rows.spec.block;
    AppendToBlock(rows, row, run.count, run.block_offset, cache->Keys(block, rows.head),
                  /*far_keys=*/nullptr, cache->Values(block, rows.head));
    row += run.count;
  }
}

// How many of `tokens` tokens from `token` on, at least one, have windows that begin in the same block.
static int64_t TokensAlike(const AttentionSpec& spec, int64_t token, int64_t tokens) {
  if (spec.window == 0) return tokens;
  const auto block = [&](int64_t t) { return spec.FirstVisible(t) / spec.block; };
  int64_t alike = 1;
  while (alike < tokens && block(token + alike) == block(token)) ++alike;
  return alike;
}

// Computes the queries of a range of the rows of a segment after `position` tokens, in all heads of the
// group. All keys and values are in the cache. memory: CachedFloats.
static void CachedQueries(const HeadRows& rows, KvLayer* cache, int64_t position,
                          const Range& range, float* memory) {
  const CachedTiling tiling = CachedTiling::Of(rows.spec);
  FloatParts parts{memory};
  const CachedScratch scratch = CachedScratch::In(rows.spec, rows.layout, &parts);
  const KvHead head{rows, cache, scratch};
  const int group = rows.spec.query_group(), end = (rows.head + 1) * group;
  for (int64_t row = range.first; row < range.last;) {
    // A tile stays in one block, so that the block offsets of its rows depend on positions only, and so
    // does the first block of their windows.
    const SegmentInBlock run = RowsInBlock(rows.spec, position, row, range.last);
    const int64_t token = position + row;
    const int tokens = static_cast<int>(
        TokensAlike(rows.spec, token, std::min<int64_t>(tiling.tokens, run.count)));
    for (int first = rows.head * group; first < end; first += tiling.heads) {
      head.Run({row, tokens, first, std::min(tiling.heads, end - first), token});
    }
    row += tokens;
  }
}
