// Queries of a recurrent kind: tiles of them read the far state and the block. Included inside the
// region of isa_begin.h, after attention_rows.h.

// Computes the far part of a tile of queries: scratch.sums [count][dp] and denominators [count].
static void FarTile(const HeadRows& rows, const HeadState& state, const float* wide, int64_t row,
                    int count, const TileScratch& scratch, float* denominators) {
  const AttentionSpec& spec = rows.spec;
  if (spec.byte_copy()) {
    return ReadCopy(spec, rows.layout, state, reinterpret_cast<const int16_t*>(wide),
                    rows.FarQuery(row), rows.far_query_stride(), count, scratch.phi, scratch.words,
                    rows.prefetcher, scratch.sums, denominators);
  }
  const int64_t features = spec.features();
  for (int m = 0; m < count; ++m) {
    const float* q = rows.FarQuery(row + m);
    float* phi = scratch.phi + m * features;
    if (spec.sketched()) {
      ForSymmetricFeatures(
          q, spec.far_dim(), [&](V value, int64_t f) __attribute__((always_inline)) {
            Store(value, phi + f);
          });
    } else {
      std::copy_n(q, features, phi);
    }
  }
  FeatureDots(scratch.phi, count, state.z, features, denominators);
  ReadState(spec, rows.layout, state, wide, scratch.phi, features, count, scratch.sums);
}

// Turns the scores of the token at `offset` of its block into weights and returns their sum.
static float WeighNearRow(const NearWeight& weight, const HeadState& state, int64_t offset,
                          int64_t limit, float* scores) {
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
static void BlockQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                         const Block& block, const float* wide, const TileScratch& scratch) {
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
    const QueryTile queries{rows.NearQuery(row), rows.near_query_stride(), tile, spec.near_dim()};
    Scores(queries, block, first + tile, scratch.scores);
    for (int m = 0; m < tile; ++m) {
      denominators[m] += WeighNearRow(weight, state, first + m, Limit(first, m, spec.block),
                                      scratch.scores + m * layout.padded_block);
    }
    AddValues(tile, first, spec.block, scratch.scores, block,
              static_cast<int>(layout.padded_dim / kLanes), scratch.sums);
    for (int m = 0; m < tile; ++m) {
      WriteOutput(rows, row + m, rows.head, scratch.sums + m * layout.padded_dim, denominators[m]);
    }
  }
}

PS_INLINE uint16_t* Bf16(float* data) { return reinterpret_cast<uint16_t*>(data); }
PS_INLINE int16_t* Words(float* data) { return reinterpret_cast<int16_t*>(data); }

// Reads the bf16 values, and near keys of mixed kinds, of the block.
static void Bf16Queries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                        const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
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

// Element: int8_t, or int16_t for widened ones.
template <typename Element>
static void ByteBlockQueries(const HeadRows& rows, const HeadState& state,
                             const SegmentInBlock& run, const Element* keys, const Element* values,
                             const float* wide, const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  const int64_t bp = rows.layout.padded_block, dp = rows.layout.padded_dim;
  if (!spec.mixed()) {
    const FloatKeys far_keys{{state.far_keys, spec.near_dim()}};
    const ByteBlock<FloatKeys, Element> block{
        far_keys, bp, values, state.value_scales, dp, scratch.words, rows.prefetcher};
    return BlockQueries(rows, state, run, block, wide, scratch);
  }
  const int64_t pairs = (spec.near_dim() + 1) / 2;
  const IntegerKeys<Element> near_keys{{keys, pairs, rows.prefetcher}, state.key_scales};
  const ByteBlock<IntegerKeys<Element>, Element> block{
      near_keys, bp, values, state.value_scales, dp, scratch.words, rows.prefetcher};
  BlockQueries(rows, state, run, block, wide, scratch);
}

// Computes the queries of `run` from the state as it is stored.
static void NarrowQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                          const TileScratch& scratch) {
  if (!rows.spec.byte_copy()) return Bf16Queries(rows, state, run, scratch);
  ByteBlockQueries(rows, state, run, state.key_bytes, state.value_bytes, nullptr, scratch);
}

// The same, with the same bits, from what WidenState and WidenTokens have widened.
static void WideQueries(const HeadRows& rows, const HeadState& state, const SegmentInBlock& run,
                        const WideHead& wide, const TileScratch& scratch) {
  const AttentionSpec& spec = rows.spec;
  if (spec.byte_copy()) {
    return ByteBlockQueries<int16_t>(rows, state, run, Words(wide.keys), Words(wide.values),
                                     wide.state, scratch);
  }
  const bool narrow = spec.narrow_block();
  const float* keys = narrow && spec.mixed() ? wide.keys : state.near_keys;
  const float* values = narrow ? wide.values : state.values;
  const NearBlock<float, float> block{
      {keys, spec.near_dim()}, rows.layout.padded_block, values, rows.layout.padded_dim};
  BlockQueries(rows, state, run, block, narrow ? wide.state : state.s, scratch);
}
