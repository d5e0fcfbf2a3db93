// How far attention may be off when its operands are bf16 (kernels/cuda/attention_parts.cuh):
// first-order propagation, as in tests/kernels/noisy.h, with these roundings, each uniform within
// its unit u = 2^-8 (cuda_test.h; a variance of a third of u^2 times the square of the value):
// - every element of q and k, far and near, and of v;
// - far: the products x_i x_j of a query and of a key (two equal ones of each pair: twice the
//   variance), and S as it is read (the oracle's bf16_tolerance); with a decay gate the key's x_j
//   times its factor, j in the later tile, or its feature times the factor;
// - near: the weight.
// FastExp, which computes the gate's factors, is off by a hundredth of that.
// The errors of a query's elements are the same for all keys: they are added up, the others are
// independent and their squares are. float32 roundings are in the oracle's own tolerance.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>
#include "base/half.h"
#include "tests/kernels/attention_oracle.h"

namespace polysketch::testing {

// What element i of a key, times the factor of a decay gate, is multiplied with in the far sum: of a
// sketch the elements of earlier tiles, which count twice, and of its own.
inline double ScaledPartners(const AttentionSpec& spec, const float* q, const float* k, int i) {
  if (!spec.sketched()) return 1;
  double sum = 0;
  const int tile = i / 8 * 8;
  for (int j = 0; j < tile + 8; ++j) sum += (j < tile ? 2.0 : 1.0) * q[j] * k[j];
  return sum;
}

// The largest slope of a weight of polynomial_square within `deviation` of the dot product: at a
// root it vanishes.
inline double PolynomialSquareSlope(const AttentionSpec& spec, const float* coefficients,
                                    double dot, double deviation) {
  double largest = 0;
  for (const double at : {dot - deviation, dot, dot + deviation}) {
    const oracle::PolynomialOfDot polynomial(spec, coefficients, at);
    largest = std::max(largest, std::abs(2 * polynomial.value * polynomial.slope));
  }
  return largest;
}

// bytes: S is read as its copy.
inline std::vector<double> Bf16Tolerance(const AttentionSpec& spec, const AttentionRows& rows,
                                         int tokens, const OracleOutput& oracle,
                                         bool bytes = false) {
  constexpr double kVariance = 0x1p-16 / 3;  // of one rounding, relative
  const int heads = spec.heads, kv_heads = spec.key_heads(), d = spec.head_dim;
  const bool far_window = spec.far_part();
  const AttentionSpec far_spec = far_window ? spec.FarPart() : spec;
  const std::vector<float>& far_q = FarQueries(spec, rows);
  const std::vector<float>& far_k = FarKeys(spec, rows);
  const oracle::DecaySums decay(spec, rows, tokens);
  std::vector<double> tolerance(oracle.value.size());
  for (int h = 0; h < heads; ++h) {
    const int kv = h / spec.query_group();
    for (int t = 0; t < tokens; ++t) {
      std::vector<double> shared(d), variance(d);  // of the numerator
      double shared_weight = 0, weight_variance = 0, denominator = spec.stabilizer;
      for (int s = 0; s <= t; ++s) {
        const bool sees = oracle::Sees(spec, t, s);
        if (!sees && !far_window) continue;
        const bool near = far_window ? sees : spec.kv_cache() || s / spec.block == t / spec.block;
        const AttentionSpec& of = near ? spec : far_spec;
        const int width = near ? spec.near_dim() : spec.far_dim();
        const float* q = &(near ? rows.near_q : far_q)[(t * heads + h) * width];
        const float* k = &(near ? rows.near_k : far_k)[(s * kv_heads + kv) * width];
        double dot = 0, squares = 0, scaled = 0;
        for (int i = 0; i < width; ++i) {
          const double term = static_cast<double>(q[i]) * k[i];
          dot += term;
          squares += term * term;
          if (spec.decay_gate && !near) scaled += Square(term * ScaledPartners(spec, q, k, i));
        }
        const int until = oracle::LastDecay(spec, t, s, sees);
        double left = std::exp(decay.Total(until * kv_heads + kv) - decay.Total(s * kv_heads + kv));
        if (!near) left *= spec.FarFactor(t);
        const float* coefficients = oracle::CoefficientsOf(spec, rows, h);
        const double weight = left * oracle::WeightOfDot(of, near, dot, coefficients);
        // Of the dot product, by the roundings of q; by those of k as much again.
        const double deviation = std::sqrt(squares * kVariance);
        const double degree = oracle::Degree(of, near);
        const double slope = of.kind == AttentionKind::kSoftmax ? weight / std::sqrt(d)
                             : spec.kind == AttentionKind::kPolynomialSquare
                                 ? PolynomialSquareSlope(spec, coefficients, dot, deviation)
                                 : left * degree * std::pow(std::abs(dot) + deviation, degree - 1);
        double own = Square(slope * deviation);
        if (near) {
          own += kVariance * weight * weight;
        } else {
          const double products = far_spec.sketched() ? 4 * squares * squares : 0;
          own += kVariance * left * left * (products + scaled);
        }
        denominator += weight;
        shared_weight += slope * deviation;
        weight_variance += own;
        for (int i = 0; i < d; ++i) {
          const double v = rows.v[(s * kv_heads + kv) * d + i];
          shared[i] += slope * deviation * std::abs(v);
          variance[i] += own * v * v + kVariance * Square(weight * v);
        }
      }
      for (int i = 0; i < d; ++i) {
        const size_t index = (t * heads + h) * d + i;
        const double of_weights = std::hypot(shared_weight, std::sqrt(weight_variance));
        const double of_values = std::hypot(shared[i], std::sqrt(variance[i]));
        tolerance[index] =
            kDeviations * std::hypot(of_values, oracle.value[index] * of_weights) / denominator +
            oracle.tolerance[index] +
            (bytes ? oracle.copy_tolerance : oracle.bf16_tolerance)[index];
      }
    }
  }
  return tolerance;
}

// Rounds rows of `width` elements to bf16, then to what a cache of 8-bit numbers holds of them
// (kernels/cuda/mx_int8.h).
inline void RoundAsCached(int width, std::vector<float>* rows) {
  for (float& x : *rows) x = Bf16ToFloat(FloatToBf16(x));
  for (auto row = rows->begin(); row != rows->end(); row += width) {
    for (int first = 0; first < width; first += 32) {
      const std::span<float> block(row + first, row + std::min(width, first + 32));
      double largest = 0;
      for (const float x : block) largest = std::max<double>(largest, std::abs(x));
      if (largest == 0) continue;
      const double step = std::exp2(std::floor(std::log2(largest * (1 + 0x1p-7))) - 6);
      for (float& x : block) x = static_cast<float>(std::nearbyint(x / step) * step);
    }
  }
}

// Expects the definition of attention from a backend with bf16 operands, under kBf16 or kQ8: keys and values
// of both are bf16, of KV kinds under kQ8 with 8-bit numbers.
inline void ExpectBf16Definition(Backend& backend, const AttentionSpec& spec, int tokens,
                                 Random* random) {
  const Sequence sequence = RandomSequence(spec, tokens, random);
  AttentionRows rows = sequence.layers[0];
  if (spec.cache_scales()) {
    RoundAsCached(spec.near_dim(), &rows.near_k);
    RoundAsCached(spec.head_dim, &rows.v);
  }
  AttentionSpec bf16 = spec;
  bf16.state_format = StateFormat::kBf16;
  const OracleOutput want = AttentionOracle(bf16, rows, tokens);
  // polynomial_square has no kernels that round queries and weights.
  const bool exact = spec.cache_scales() && spec.kind == AttentionKind::kPolynomialSquare;
  const std::vector<double> tolerance =
      exact ? want.tolerance
            : Bf16Tolerance(bf16, rows, tokens, want, spec.state_format == StateFormat::kQ8);
  const auto out = RunAlone(backend, spec, sequence, {tokens});
  double worst = 0;
  for (size_t i = 0; i < want.value.size(); ++i) {
    ASSERT_NEAR(out[0][i], want.value[i], tolerance[i]) << Describe(spec) << " element " << i;
    worst = std::max(worst, std::abs(out[0][i] - want.value[i]) / tolerance[i]);
  }
  // A tolerance that nothing comes near to would hide faults.
  EXPECT_GT(worst, 0.02) << Describe(spec);
}

}  // namespace polysketch::testing
