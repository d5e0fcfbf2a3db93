// KV kinds: queries read every block of a KV cache up to their own. Included inside the region of
// isa_begin.h, after attention_update.h.

// KV kinds: a tile of queries reads every block up to its own.
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

// Stores the keys and values of a range of the segment's rows. The state has their blocks.
static void AppendCached(const HeadRows& rows, int layer, KvState* state, const Range& range) {
  for (int64_t row = range.first; row < range.last;) {
    const SegmentInBlock run = RowsInBlock(rows.spec, state->position(), row, range.last);
    const int64_t block = (state->position() + row) / rows.spec.block;
    AppendToBlock(rows, row, run.count, run.block_offset, state->Keys(layer, block, rows.head),
                  /*far_keys=*/nullptr, state->Values(layer, block, rows.head));
    row += run.count;
  }
}

// Computes a range of the segment's queries. All its keys and values are in the state. memory:
// kQueryTile * (bp + dp) floats.
static void CachedQueries(const HeadRows& rows, int layer, KvState* state, const Range& range,
                          float* memory) {
  const KvHead head{rows, state, layer, NearWeight::Of(rows.spec, rows.Coefficients())};
  for (int64_t row = range.first; row < range.last;) {
    // A tile stays in one block, so that the block offsets of its rows depend on positions only.
    const SegmentInBlock run = RowsInBlock(rows.spec, state->position(), row, range.last);
    const int tile = static_cast<int>(std::min<int64_t>(kQueryTile, run.count));
    head.Tile(row, tile, state->position() + row, memory,
              memory + kQueryTile * rows.layout.padded_block);
    row += tile;
  }
}
