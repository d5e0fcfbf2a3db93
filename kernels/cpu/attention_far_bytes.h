// The far part of states that are read at one byte (StateFormat::kQ8): a copy of S as 8-bit integers
// (kernels/state_bytes.h), and its products with features. Included inside the region of
// isa_begin.h, after integer_tile.h.

// Makes the head's copy from S. scratch: 2 dp floats.
static void MakeCopy(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                     float* scratch) {
  const int64_t features = spec.features(), dp = layout.padded_dim;
  float *inverses = scratch, *row = scratch + dp;
  for (int64_t c = 0; c < dp; c += kLanes) {
    I largest = IntZero();
    for (int64_t f = 0; f < features; ++f) {
      largest = MaxMagnitude(largest, Load(state.s + f * dp + c));
    }
    alignas(64) float lanes[kLanes];
    IntStore(largest, lanes);
    for (int i = 0; i < kLanes; ++i) {
      const QuantScale scale = QuantScale::Of(lanes[i], 1.0f);
      state.column_scales[c + i] = scale.scale;
      inverses[c + i] = scale.inverse;
    }
  }
  const auto scale_of = [&](int64_t f) {
    if (f == features) return QuantScale{0.0f, 0.0f};
    I largest = IntZero();
    for (int64_t c = 0; c < dp; c += kLanes) {
      largest = MaxMagnitude(largest, Mul(Load(state.s + f * dp + c), Load(inverses + c)));
    }
    const QuantScale scale = QuantScale::Of(ReduceMagnitude(largest));
    state.row_scales[f] = scale.scale;
    return scale;
  };
  std::fill_n(row, dp, 0.0f);  // the row after an odd number of features
  for (int64_t f = 0; f < features; f += 2) {
    const V first = Set1(scale_of(f).inverse), second = Set1(scale_of(f + 1).inverse);
    const float* a = state.s + f * dp;
    const float* b = f + 1 < features ? a + dp : row;
    for (int64_t c = 0; c < dp; c += kLanes) {
      const V inverse = Load(inverses + c);
      StoreBytePairs(Mul(Mul(Load(a + c), inverse), first), Mul(Mul(Load(b + c), inverse), second),
                     state.copy + f * dp + 2 * c);
    }
  }
}

// out [rows][dp] = phi S, of the copy. phi [rows][features] is overwritten. wide: the copy widened,
// or null to read it. words: scratch.
static void ReadCopy(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                     const int16_t* wide, float* phi, int rows, const IntegerRows& words,
                     float* out) {
  const int64_t features = spec.features(), dp = layout.padded_dim;
  for (int m = 0; m < rows; ++m) {
    float* x = phi + m * features;
    MultiplyBy(state.row_scales, features, x);
    words.scales[m] = RoundToWords(x, features, words.words + m * words.stride);
  }
  const int64_t pairs = (features + 1) / 2;
  const int vectors = static_cast<int>(dp / kLanes);
  const IntegerOutput output{out, dp, state.column_scales, /*accumulate=*/false};
  if (wide != nullptr) {
    MultiplyIntegers(words, rows, pairs, WordPairRows{wide, 2 * dp}, vectors, output);
  } else {
    const Readahead ahead{state.copy + pairs * 2 * dp,
                          spec.mixed() ? state.key_bytes : state.value_bytes};
    MultiplyIntegers(words, rows, pairs, BytePairRows{state.copy, 2 * dp, ahead}, vectors, output);
  }
}
