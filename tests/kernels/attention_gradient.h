// Attention of one head over a whole sequence, and its gradients, by the definition: all pairs
// s <= t in float64. The training kernels (kernels/cuda/training) are tested against it.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/attention_spec.h"

namespace polysketch::testing::definition {

// Rows [tokens][width]. Only mixed kinds have far_q and far_k here: in other recurrent kinds the
// far rows equal the near rows, and KV kinds have no far part. log_decay [tokens] with a decay
// gate. coefficients: a_0 to a_p of polynomial_square.
struct HeadRows {
  std::vector<double> near_q, near_k, far_q, far_k, v, log_decay;
  std::vector<double> coefficients = {};
};

struct HeadOutput {
  std::vector<double> out;           // [tokens][d]
  std::vector<double> denominators;  // [tokens]: c + sum_s w[t,s]
};

// The weight of a pair as a function of its dot product.
struct PairWeight {
  double weight = 0;
  double slope = 0;  // derivative of the weight with respect to the dot product
};

inline double Dot(const double* a, const double* b, int width) {
  double sum = 0;
  for (int i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

inline void Add(double factor, const double* x, int width, double* sum) {
  for (int i = 0; i < width; ++i) sum[i] += factor * x[i];
}

inline PairWeight PowerOf(double dot, int power) {
  const double below = std::pow(dot, power - 1);
  return {below * dot, power * below};
}

// P and its derivative at x = (dot + alpha) / beta, by Horner's rule.
struct Polynomial {
  double x, value = 0, derivative = 0;

  Polynomial(const AttentionSpec& spec, const std::vector<double>& coefficients, double dot)
      : x((dot + spec.alpha) / spec.beta) {
    for (int i = spec.power; i >= 0; --i) {
      derivative = derivative * x + value;
      value = value * x + coefficients[i];
    }
  }
};

// Whether a pair of tokens is compared by near or by far rows, and the width of the rows.
struct Pair {
  bool near;
  int width;
};
inline Pair PairOf(const AttentionSpec& spec, int64_t t, int64_t s) {
  const bool near = !spec.mixed() || s / spec.block == t / spec.block;
  return {near, near ? spec.near_dim() : spec.far_dim()};
}

// What a decay gate keeps at token t of a weight of token s: e^(G_t - G_s), or 1 without a gate.
class Kept {
 public:
  explicit Kept(const HeadRows& rows) : sums_(rows.log_decay) {
    for (size_t t = 1; t < sums_.size(); ++t) sums_[t] += sums_[t - 1];
  }
  double operator()(int64_t t, int64_t s) const {
    return sums_.empty() ? 1 : std::exp(sums_[t] - sums_[s]);
  }

 private:
  std::vector<double> sums_;  // G
};

inline PairWeight WeightOf(const AttentionSpec& spec, bool near, double dot,
                           const std::vector<double>& coefficients = {}) {
  switch (spec.kind) {
    case AttentionKind::kSoftmax: {
      const double scale = 1 / std::sqrt(spec.head_dim), weight = std::exp(dot * scale);
      return {weight, scale * weight};
    }
    case AttentionKind::kPolynomial:
      return PowerOf(dot, spec.power);
    case AttentionKind::kPolynomialSquare: {
      const Polynomial p(spec, coefficients, dot);
      return {p.value * p.value, 2 * p.value * p.derivative / spec.beta};
    }
    case AttentionKind::kLinear:
    case AttentionKind::kPerformer:
      return PowerOf(dot, 1);
    default:
      return PowerOf(dot, near && spec.mixed() ? spec.near_power : 2);
  }
}

inline HeadOutput AttendHead(const AttentionSpec& spec, const HeadRows& rows, int64_t tokens) {
  const int d = spec.head_dim;
  const Kept kept(rows);
  HeadOutput output{std::vector<double>(tokens * d), std::vector<double>(tokens)};
  for (int64_t t = 0; t < tokens; ++t) {
    double* out = &output.out[t * d];
    double denominator = spec.stabilizer;
    for (int64_t s = 0; s <= t; ++s) {
      const auto [near, width] = PairOf(spec, t, s);
      const double* q = &(near ? rows.near_q : rows.far_q)[t * width];
      const double* k = &(near ? rows.near_k : rows.far_k)[s * width];
      const double dot = Dot(q, k, width);
      const double weight = kept(t, s) * WeightOf(spec, near, dot, rows.coefficients).weight;
      denominator += weight;
      Add(weight, &rows.v[s * d], d, out);
    }
    for (int i = 0; i < d; ++i) out[i] /= denominator;
    output.denominators[t] = denominator;
  }
  return output;
}

// Gradients of sum(out * g) with respect to each element of `rows`; g [tokens][d]. With a = g / D
// (D the denominator) and e = -(g . out) / D, the gradient of w[t,s] is a_t . v_s + e_t and the
// gradient of v_s is sum_t w[t,s] a_t. The gradient of the log decay of token u is the sum over s <
// u <= t of the weights times their gradients; that of coefficient a_i is the sum of 2 P x^i times
// the gradients of the weights.
inline HeadRows AttendHeadGradients(const AttentionSpec& spec, const HeadRows& rows, int64_t tokens,
                                    const std::vector<double>& g) {
  const int d = spec.head_dim;
  const HeadOutput output = AttendHead(spec, rows, tokens);
  HeadRows gradients;
  gradients.near_q.resize(rows.near_q.size());
  gradients.near_k.resize(rows.near_k.size());
  gradients.far_q.resize(rows.far_q.size());
  gradients.far_k.resize(rows.far_k.size());
  gradients.v.resize(rows.v.size());
  gradients.log_decay.resize(rows.log_decay.size());
  gradients.coefficients.resize(rows.coefficients.size());
  const Kept kept(rows);
  std::vector<double> a(d);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < d; ++i) a[i] = g[t * d + i] / output.denominators[t];
    const double e = -Dot(a.data(), &output.out[t * d], d);
    for (int64_t s = 0; s <= t; ++s) {
      const auto [near, width] = PairOf(spec, t, s);
      const double* q = &(near ? rows.near_q : rows.far_q)[t * width];
      const double* k = &(near ? rows.near_k : rows.far_k)[s * width];
      const double dot = Dot(q, k, width);
      const PairWeight pair = WeightOf(spec, near, dot, rows.coefficients);
      const double left = kept(t, s), of_weight = Dot(a.data(), &rows.v[s * d], d) + e;
      const double of_dot = left * pair.slope * of_weight;
      Add(of_dot, k, width, &(near ? gradients.near_q : gradients.far_q)[t * width]);
      Add(of_dot, q, width, &(near ? gradients.near_k : gradients.far_k)[s * width]);
      Add(left * pair.weight, a.data(), d, &gradients.v[s * d]);
      for (int64_t u = s + 1; u <= t && !rows.log_decay.empty(); ++u) {
        gradients.log_decay[u] += left * pair.weight * of_weight;
      }
      if (rows.coefficients.empty()) continue;
      const Polynomial p(spec, rows.coefficients, dot);
      double factor = 2 * p.value * of_weight;
      for (double& gradient : gradients.coefficients) {
        gradient += factor;
        factor *= p.x;
      }
    }
  }
  return gradients;
}

}  // namespace polysketch::testing::definition
