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
  PS_INLINE V Apply(const NearWeight& w, V score, float top) {
    switch (w.kind) {
      case AttentionKind::kSoftmax:
        return Exp(Mul(Sub(score, Set1(top)), Set1(w.scale)));
      case AttentionKind::kLinear:
      case AttentionKind::kPerformer:
        return score;
      default:
        return EvenPower(score, w.power);
    }
  }
};

// One block's keys and values for one head.
struct NearBlock {
  const float* keys;  // [near_dim][keys_row], transposed
  int64_t keys_row;
  const float* values;  // [tokens][values_row]
  int64_t values_row;
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

// scores [rows][keys_row] against every token that some row sees, whole vectors.
static void Scores(const QueryTile& t, const NearBlock& block, int64_t tokens, float* scores) {
  const int vectors = static_cast<int>((tokens + kLanes - 1) / kLanes);
  Product(t.q, t.q_row, 1, t.rows, t.dim, RowsF32{block.keys, block.keys_row}, vectors, scores,
          block.keys_row, false);
}

// Turns one row of scores into weights in place; adds them to the row's lanes of the denominator.
static void WeighRow(const NearWeight& weight, float top, int64_t limit, float* scores, V* lanes) {
  int64_t s = 0;
  for (; s + kLanes <= limit; s += kLanes) {
    const V w = NearWeight::Apply(weight, Load(scores + s), top);
    Store(w, scores + s);
    *lanes = Add(*lanes, w);
  }
  if (s < limit) {
    const V w = ZeroUnless(FirstN(static_cast<int>(limit - s)),
                           NearWeight::Apply(weight, Load(scores + s), top));
    Store(w, scores + s);
    *lanes = Add(*lanes, w);
  }
}

// out [rows][values_row] += weights values, over tokens in order. Tokens that every row sees go
// through the tile; the few behind them row by row, so that nothing of a row's future enters it,
// not even times zero.
static void AddValues(int rows, int64_t first, int64_t block_size, const float* weights,
                      const NearBlock& block, int vectors, float* out) {
  const int64_t common = Limit(first, 0, block_size);
  const RowsF32 values{block.values, block.values_row};
  Product(weights, block.keys_row, 1, rows, common, values, vectors, out, block.values_row, true);
  for (int m = 1; m < rows; ++m) {
    const int64_t rest = Limit(first, m, block_size) - common;
    if (rest <= 0) continue;
    const RowsF32 tail{block.values + common * block.values_row, block.values_row};
    Product(weights + m * block.keys_row + common, block.keys_row, 1, 1, rest, tail, vectors,
            out + m * block.values_row, block.values_row, true);
  }
}
