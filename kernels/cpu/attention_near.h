// The near part: weights of the keys of one block, and sums of its values in token order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/register_tile.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// Queries that attention processes at a time.
constexpr int kQueryTile = 12;

// x^p for even p >= 2, by squaring. All elements take the same products.
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

// How scores become weights.
struct NearWeight {
  bool polynomial_square;
  int power;                  // AttentionSpec::near_degree
  float scale;                // softmax; 1 / beta of polynomial_square
  float offset;               // alpha of polynomial_square
  const float* coefficients;  // of P, in polynomial_square

  // coefficients: of the head, in polynomial_square.
  static NearWeight Of(const AttentionSpec& spec, const float* coefficients = nullptr) {
    if (spec.kind == AttentionKind::kPolynomialSquare) {
      return {true, spec.near_degree(), 1.0f / spec.beta, spec.alpha, coefficients};
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
    return {false, spec.near_degree(), scale, 0.0f, nullptr};
  }
};

// P((score + alpha) / beta)^2 by Horner's rule.
PS_INLINE V PolynomialSquare(const NearWeight& weight, V score) {
  const V x = Mul(Add(score, Set1(weight.offset)), Set1(weight.scale));
  V value = Set1(weight.coefficients[weight.power]);
  for (int i = weight.power - 1; i >= 0; --i) value = Fma(value, x, Set1(weight.coefficients[i]));
  return Mul(value, value);
}

// rows: of the tile or block that begins at `data`.
PS_INLINE RowsF32 RowsOf(const float* data, int64_t stride, int64_t /*rows*/,
                         const Readahead& /*ahead*/) {
  return {data, stride};
}
PS_INLINE RowsBf16 RowsOf(const uint16_t* data, int64_t stride, int64_t /*rows*/,
                          const Readahead& ahead) {
  return {data, stride, ahead};
}

// Transposed keys of `dim` rows in panels (state.h), as an operand of MultiplyInCache: a band of
// columns is in one panel.
template <typename Key>
struct KeyPanels {
  const Key* data;
  int64_t dim;
  Readahead ahead = {};
  auto Columns(int64_t first) const {
    const int64_t column = first % kKeyPanel;
    return RowsOf(data + KeyIndex(dim, 0, first - column), kKeyPanel, dim, ahead).Columns(column);
  }
};

// One block's keys and values for one head; Key and Value: float, or uint16_t for bf16.
template <typename Key, typename Value>
struct NearBlock {
  KeyPanels<Key> keys;
  int64_t scores_row;   // tokens of all panels
  const Value* values;  // [tokens][values_row]
  int64_t values_row;
  Readahead values_ahead = {};
};

// A tile of queries that read the same keys.
struct QueryTile {
  const float* q;
  int64_t q_row;
  int rows;
  int dim;  // near_dim
};

// Number of tokens of the block that row m attends to. `first` is the offset of row 0's token from
// the start of this block; it is at or after the block's end if this is an earlier block.
PS_INLINE int64_t Limit(int64_t first, int m, int64_t block) {
  return std::min(first + m + 1, block);
}

// scores [rows][scores_row] of the first `tokens` tokens, in whole vectors.
template <typename Key, typename Value>
static void Scores(const QueryTile& t, const NearBlock<Key, Value>& block, int64_t tokens,
                   float* scores) {
  const int vectors = static_cast<int>((tokens + kLanes - 1) / kLanes);
  MultiplyInCache(t.q, t.q_row, 1, t.rows, t.dim, block.keys, vectors, scores, block.scores_row,
                  false);
}

// Turns one row of scores into weights, in place, and adds them to the row's lanes of the
// denominator. decay: attention_decay.h.
template <typename Weigh, typename Decay>
PS_INLINE void WeighLanes(const Weigh& weigh, const Decay& decay, int64_t limit, float* scores,
                          V* lanes) {
  V sum = *lanes;
  int64_t s = 0;
  for (; s + kLanes <= limit; s += kLanes) {
    const V w = decay(weigh(Load(scores + s)), s);
    Store(w, scores + s);
    sum = Add(sum, w);
  }
  if (s < limit) {
    const V weight = decay(weigh(Load(scores + s)), s);
    const V w = ZeroUnless(FirstN(static_cast<int>(limit - s)), weight);
    Store(w, scores + s);
    sum = Add(sum, w);
  }
  *lanes = sum;
}

#define PS_LAMBDA(x) [&](V x) __attribute__((always_inline))

// top: the row's largest score (softmax only).
template <typename Decay>
static void WeighRow(const NearWeight& weight, const Decay& decay, float top, int64_t limit,
                     float* scores, V* lanes) {
  const auto weigh = [&](const auto& of) __attribute__((always_inline)) {
    WeighLanes(of, decay, limit, scores, lanes);
  };
  if (weight.polynomial_square) return weigh(PS_LAMBDA(x) { return PolynomialSquare(weight, x); });
  // Models use powers 2 and 4; other powers take a loop over the bits of the power.
  switch (weight.power) {
    case 0: {
      const V top_v = Set1(top), scale = Set1(weight.scale);
      return weigh(PS_LAMBDA(x) { return Exp(Mul(Sub(x, top_v), scale)); });
    }
    case 1:
      return weigh(PS_LAMBDA(x) { return x; });
    case 2:
      return weigh(PS_LAMBDA(x) { return EvenPower(x, 2); });
    case 4:
      return weigh(PS_LAMBDA(x) { return EvenPower(x, 4); });
    default:
      return weigh(PS_LAMBDA(x) { return EvenPower(x, weight.power); });
  }
}
#undef PS_LAMBDA

// out [rows][values_row] += weights values, over the block's tokens in order. The rows are queries
// of tokens that follow one another, `heads` of each. Tokens that all rows attend to are added by
// the tile, the few tokens after them for each token of queries, so that no later token enters a
// row, not even times zero.
template <typename Key, typename Value>
static void AddValues(int rows, int64_t first, int64_t block_size, const float* weights,
                      const NearBlock<Key, Value>& block, int vectors, float* out, int heads = 1) {
  const int64_t common = Limit(first, 0, block_size);
  const auto values = RowsOf(block.values, block.values_row, block.scores_row, block.values_ahead);
  MultiplyInCache(weights, block.scores_row, 1, rows, common, values, vectors, out,
                  block.values_row, true);
  for (int t = 1, m = heads; m < rows; ++t, m += heads) {
    const int64_t rest = Limit(first, t, block_size) - common;
    if (rest <= 0) continue;
    const auto tail = RowsOf(block.values + common * block.values_row, block.values_row,
                             block.scores_row - common, block.values_ahead);
    MultiplyInCache(weights + m * block.scores_row + common, block.scores_row, 1, heads, rest, tail,
                    vectors, out + m * block.values_row, block.values_row, true);
  }
}

#include "kernels/cpu/isa_end.inc"
