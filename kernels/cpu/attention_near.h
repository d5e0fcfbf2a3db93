// The near part: weights against the keys of one block, values added in token order. Included
// inside the region of isa_begin.h, behind simd.h and tile.h.

// Rows of queries that go through attention together.
constexpr int kQueryTile = 12;

// x^p for even p >= 2, by squaring: the same products for every element.
PS_INLINE V EvenPower(V x, int power) {
  V base = Mul(x, x);
  int exponent = power / 2;
  while ((exponent & 1) == 0) {
    base = Mul(base, base);
    exponent >>= 1;
  }
  V result = base;
  while ((exponent >>= 1) != 0) {
    base = Mul(base, base);
    if (exponent & 1) result = Mul(result, base);
  }
  return result;
}

// Scores to weights. `top` is the row's largest score (softmax only).
struct NearWeight {
  AttentionKind kind;
  int power;    // of the even powers
  float scale;  // of softmax

  static NearWeight Of(const AttentionSpec& spec) {
    const int power = spec.mixed()                              ? spec.near_power
                      : spec.kind == AttentionKind::kPolynomial ? spec.power
                                                                : 2;
    return {spec.kind, power, 1.0f / std::sqrt(static_cast<float>(spec.head_dim))};
  }
};

PS_INLINE RowsF32 RowsOf(const float* data, int64_t stride, const Onward& /*onward*/) {
  return {data, stride};
}
PS_INLINE RowsBf16 RowsOf(const uint16_t* data, int64_t stride, const Onward& onward) {
  return {data, stride, onward};
}

// Transposed keys of `dim` rows in panels (state.h), as an operand of Product: a band of columns
// lies inside one panel.
template <typename Key>
struct KeyPanels {
  const Key* data;
  int64_t dim;
  Onward onward = {};
  auto Columns(int64_t first) const {
    return RowsOf(data + KeyIndex(dim, 0, first), kKeyPanel, onward);
  }
};

// One block's keys and values for one head; Key and Value: float, or uint16_t for bf16.
template <typename Key, typename Value>
struct NearBlock {
  KeyPanels<Key> keys;
  int64_t scores_row;   // tokens of all panels
  const Value* values;  // [tokens][values_row]
  int64_t values_row;
  Onward values_onward = {};
};

// A tile of queries of one head. Row m sees the first limit(m) tokens of the block.
struct QueryTile {
  const float* q;
  int64_t q_row;
  int rows;
  int dim;  // near_dim
};

// Tokens of the block that row m sees; `first` is the place of row 0's own token counted from the
// start of this block (it lies behind the block's end when the block is an earlier one).
PS_INLINE int64_t Limit(int64_t first, int m, int64_t block) {
  return std::min(first + m + 1, block);
}

// scores [rows][scores_row] against every token that some row sees, whole vectors.
template <typename Key, typename Value>
static void Scores(const QueryTile& t, const NearBlock<Key, Value>& block, int64_t tokens,
                   float* scores) {
  const int vectors = static_cast<int>((tokens + kLanes - 1) / kLanes);
  MultiplyInCache(t.q, t.q_row, 1, t.rows, t.dim, block.keys, vectors, scores, block.scores_row,
                  false);
}

// Turns one row of scores into weights in place; adds them to the row's lanes of the denominator.
template <typename Weigh>
PS_INLINE void WeighLanes(const Weigh& weigh, int64_t limit, float* scores, V* lanes) {
  V sum = *lanes;
  int64_t s = 0;
  for (; s + kLanes <= limit; s += kLanes) {
    const V w = weigh(Load(scores + s));
    Store(w, scores + s);
    sum = Add(sum, w);
  }
  if (s < limit) {
    const V w = ZeroUnless(FirstN(static_cast<int>(limit - s)), weigh(Load(scores + s)));
    Store(w, scores + s);
    sum = Add(sum, w);
  }
  *lanes = sum;
}

#define PS_LAMBDA(x) [&](V x) __attribute__((always_inline))

static void WeighRow(const NearWeight& weight, float top, int64_t limit, float* scores, V* lanes) {
  switch (weight.kind) {
    case AttentionKind::kSoftmax: {
      const V top_v = Set1(top), scale = Set1(weight.scale);
      WeighLanes(
          PS_LAMBDA(x) { return Exp(Mul(Sub(x, top_v), scale)); }, limit, scores, lanes);
      return;
    }
    case AttentionKind::kLinear:
    case AttentionKind::kPerformer:
      WeighLanes(
          PS_LAMBDA(x) { return x; }, limit, scores, lanes);
      return;
    default:
      break;
  }
  // Degrees 2 and 4 are what models have; the others pay for a loop over the bits of the degree.
  if (weight.power == 2) {
    WeighLanes(
        PS_LAMBDA(x) { return EvenPower(x, 2); }, limit, scores, lanes);
  } else if (weight.power == 4) {
    WeighLanes(
        PS_LAMBDA(x) { return EvenPower(x, 4); }, limit, scores, lanes);
  } else {
    WeighLanes(
        PS_LAMBDA(x) { return EvenPower(x, weight.power); }, limit, scores, lanes);
  }
}
#undef PS_LAMBDA

// out [rows][values_row] += weights values, over tokens in order. Tokens that every row sees go
// through the tile; the few behind them row by row, so that nothing of a row's future enters it,
// not even times zero.
template <typename Key, typename Value>
static void AddValues(int rows, int64_t first, int64_t block_size, const float* weights,
                      const NearBlock<Key, Value>& block, int vectors, float* out) {
  const int64_t common = Limit(first, 0, block_size);
  const auto values = RowsOf(block.values, block.values_row, block.values_onward);
  MultiplyInCache(weights, block.scores_row, 1, rows, common, values, vectors, out,
                  block.values_row, true);
  for (int m = 1; m < rows; ++m) {
    const int64_t rest = Limit(first, m, block_size) - common;
    if (rest <= 0) continue;
    const auto tail =
        RowsOf(block.values + common * block.values_row, block.values_row, block.values_onward);
    MultiplyInCache(weights + m * block.scores_row + common, block.scores_row, 1, 1, rest, tail,
                    vectors, out + m * block.values_row, block.values_row, true);
  }
}
