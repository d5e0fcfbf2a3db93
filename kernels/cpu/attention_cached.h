// KV kinds: queries read every block of a KV cache up to their own. Included inside the region of
// isa_begin.h, after attention_update.h.

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

  // Calls fn(m, limit) for the rows of a tile. limit: how many tokens the row attends to of the block
  // whose first token is `first` tokens before the tile's.
  template <typename Fn>
  void ForRows(const CachedTile& tile, int64_t first, const Fn& fn) const {
    for (int t = 0, m = 0; t < tile.tokens; ++t) {
      const int64_t limit = Limit(first, t, rows.spec.block);
      for (int h = 0; h < tile.heads; ++h) fn(m++, limit);
    }
  }

  void Run(const CachedTile& tile) const {
    const AttentionSpec& spec = rows.spec;
    const int64_t size = spec.block, padded = rows.layout.padded_block;
    const int64_t blocks = (tile.token + tile.tokens - 1) / size + 1;
    const bool softmax = spec.kind == AttentionKind::kSoftmax;
    const bool keeps = softmax && tile.rows() * blocks * padded <= CachedScratch::kKeptScores;
    const int64_t scores_row = keeps ? blocks * padded : padded;
    const QueryTile queries = Queries(tile);
    // Computes the scores of a block and returns where they are.
    const auto score = [&](int64_t index) {
      float* scores = scratch.scores + (keeps ? index * padded : 0);
      Scores(queries, Block(index, scores_row),
             Limit(tile.token - index * size, tile.tokens - 1, size), scores);
      return scores;
    };
    float tops[kQueryTile] = {};
    if (softmax) {  // a maximum is exact in any order
      std::fill_n(tops, tile.rows(), -std::numeric_limits<float>::infinity());
      for (int64_t index = 0; index < blocks; ++index) {
        const float* scores = score(index);
        ForRows(tile, tile.token - index * size, [&](int m, int64_t limit) {
          tops[m] = LargestOf(scores + m * scores_row, limit, tops[m]);
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
    for (int64_t index = 0; index < blocks; ++index) {
      const int64_t first = tile.token - index * size;
      float* scores = keeps ? scratch.scores + index * padded : score(index);
      ForRows(tile, first, [&](int m, int64_t limit) {
        WeighRow(weights[m % tile.heads], NoDecay(), tops[m], limit, scores + m * scores_row,
                 &lanes[m]);
      });
      AddValues(tile.rows(), first, size, scores, Block(index, scores_row),
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
    // A tile stays in one block, so that the block offsets of its rows depend on positions only.
    const SegmentInBlock run = RowsInBlock(rows.spec, position, row, range.last);
    const int tokens = static_cast<int>(std::min<int64_t>(tiling.tokens, run.count));
    for (int first = rows.head * group; first < end; first += tiling.heads) {
      head.Run({row, tokens, first, std::min(tiling.heads, end - first), position + row});
    }
    row += tokens;
  }
}
