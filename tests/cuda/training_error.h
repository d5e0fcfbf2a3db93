// How far the training kernels may be off (kernels/cuda/training): first-order propagation, as in
// tests/kernels/noisy.h, from inputs that are bf16 already. bf16 keeps 8 bits: a rounding changes a
// value by at most u = 2^-8 of itself, uniformly at worst: a variance V = u^2 / 3 of its square.
// What is rounded:
// - near: the weight, where it multiplies values (forward, dv), and the gradient by a dot product
//   (dq, dk);
// - far: the products x_i x_j of queries and y_i y_j of keys, and S and R as they are read. A
//   product and its mirror image (j, i) are rounded alike: twice the variance of a read;
// - the scaled cotangents a, for all sums that they are in: the same error for all keys of a query,
//   so those of a query's gradient are added up, where others are independent.
// - with a decay gate, before it is multiplied: the later factor x_j of a product (its tile is the
//   later one) of keys in S, of queries in R.
// The forward's errors come back through D and e = -(g . out) / D. float32 sums (2^-24) are far
// below all of these, and so are the gate's factors (2^-17).
//
// In the linear form features are the rows themselves: what is rounded of the far part are S and R as
// they are read, and with a decay gate the keys in S and the queries in R.
//
// The gradient of a log decay is a sum of what later tokens add as queries, less what they add as keys
// (gradients.cuh). What dw is off by is the same in both, so that only pairs across the token count,
// and for all keys of a query; the other errors are independent.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/attention_gradient.h"
#include "tests/kernels/noisy.h"

namespace polysketch::testing {

// Standard deviations, shaped as what they belong to.
struct TrainingError {
  std::vector<double> out;
  definition::HeadRows rows;
};

class TrainingErrorModel {
 public:
  TrainingErrorModel(const AttentionSpec& spec, const definition::HeadRows& rows, int64_t tokens,
                     const std::vector<double>& g)
      : spec_(spec),
        rows_(rows),
        x_(spec.mixed() ? rows.far_q : rows.near_q),
        y_(spec.mixed() ? rows.far_k : rows.near_k),
        tokens_(tokens),
        g_(g),
        d_(spec.head_dim),
        r_(spec.kv_cache() ? 0 : spec.far_dim()),
        linear_(!spec.sketched()),
        features_(linear_ ? r_ : r_ * r_),
        output_(definition::AttendHead(spec, rows, tokens)) {
    error_.out.resize(output_.out.size());
    decay_.resize(tokens);
    for (int64_t t = 0; t < tokens && !rows.log_decay.empty(); ++t) {
      decay_[t] = (t > 0 ? decay_[t - 1] : 0) + rows.log_decay[t];
    }
    term_variance_.resize(tokens);
    for (const auto member : {&definition::HeadRows::near_q, &definition::HeadRows::near_k,
                              &definition::HeadRows::far_q, &definition::HeadRows::far_k,
                              &definition::HeadRows::v, &definition::HeadRows::log_decay}) {
      (error_.rows.*member).resize((rows.*member).size());  // variances until the end
    }
    Forward();
    Pairs();
    if (r_ > 0) States();
    if (!rows.log_decay.empty()) LogDecays();
    for (const auto member : {&definition::HeadRows::near_q, &definition::HeadRows::near_k,
                              &definition::HeadRows::far_q, &definition::HeadRows::far_k,
                              &definition::HeadRows::v, &definition::HeadRows::log_decay}) {
      for (double& x : error_.rows.*member) x = std::sqrt(x);
    }
  }
  const TrainingError& error() const { return error_; }

 private:
  static constexpr double kV = 0x1p-16 / 3;

  bool Near(int64_t t, int64_t s) const { return r_ == 0 || t / spec_.block == s / spec_.block; }
  struct Pair {
    double weight, slope;
    double squares;  // sum of the squares of the dot product's terms, times what the gate keeps
    double scaled;   // variance of a far weight by the rounding of the factors x_j
    const double *q, *k;
    int width;
  };
  Pair PairOf(int64_t t, int64_t s) const {
    const bool near = Near(t, s);
    const int width = near ? spec_.near_dim() : r_;
    Pair pair{0,
              0,
              0,
              0,
              &(near ? rows_.near_q : x_)[t * width],
              &(near ? rows_.near_k : y_)[s * width],
              width};
    double dot = 0, squares = 0;
    for (int i = 0; i < width; ++i) {
      dot += pair.q[i] * pair.k[i];
      squares += Square(pair.q[i] * pair.k[i]);
    }
    const definition::PairWeight weight = definition::WeightOf(spec_, near, dot);
    const double kept = std::exp(decay_[t] - decay_[s]);
    pair.weight = kept * weight.weight;
    pair.slope = kept * weight.slope;
    pair.squares = kept * squares;
    if (linear_ && !near) {
      if (spec_.decay_gate) pair.scaled = kV * kept * kept * squares;
      pair.squares = 0;  // no product is rounded
      return pair;
    }
    for (int j = 0; j < r_ && !near && spec_.decay_gate; ++j) {
      double partners = 0;
      for (int i = 0; i < j / 8 * 8 + 8; ++i) {
        partners += (i < j / 8 * 8 ? 2 : 1) * pair.q[i] * pair.k[i];
      }
      pair.scaled += kV * Square(kept * pair.q[j] * pair.k[j] * partners);
    }
    return pair;
  }
  // The same of 2 sum_j q_j k_i k_j, the gradient by q_i, without the factor 2 k_i: j in the same or a
  // later tile is rounded itself, i with all earlier ones.
  double ScaledGradient(const Pair& pair, int i) const {
    if (!spec_.decay_gate) return 0;
    double later = 0, earlier = 0;
    for (int j = 0; j < r_; ++j) {
      const double term = pair.q[j] * pair.k[j];
      j / 8 >= i / 8 ? later += Square(term) : earlier += term;
    }
    return kV * (later + Square(earlier));
  }
  double Feature(const double* row, int f) const {
    return linear_ ? row[f] : row[f / r_] * row[f % r_];
  }
  // Of a query's product and a state's element, both rounded and each twice (mirror images); in the
  // linear form of the state's element.
  double kRead() const { return linear_ ? kV : 4 * kV; }
  // G at the end of the block before, or at the end of the block itself.
  double SumBefore(int64_t block) const { return block == 0 ? 0 : decay_[block * spec_.block - 1]; }
  double SumAfter(int64_t block) const {
    return decay_[std::min<int64_t>((block + 1) * spec_.block, tokens_) - 1];
  }
  // Sum of phi(rows) values^T over the blocks before `block` if `before`, else over those after it, as
  // far as the gate keeps it up to the block's start, or from its end on.
  std::vector<double> State(int64_t block, bool before, const std::vector<double>& rows,
                            const std::vector<double>& values) const {
    std::vector<double> state(features_ * d_);
    for (int64_t s = 0; s < tokens_; ++s) {
      if (before ? s / spec_.block >= block : s / spec_.block <= block) continue;
      const double kept =
          std::exp(before ? SumBefore(block) - decay_[s] : decay_[s] - SumAfter(block));
      for (int f = 0; f < features_; ++f) {
        const double phi = kept * Feature(&rows[s * r_], f);
        for (int c = 0; c < d_; ++c) state[f * d_ + c] += phi * values[s * d_ + c];
      }
    }
    return state;
  }

  // Errors of out, D and e; the values of a and e.
  void Forward() {
    a_.resize(tokens_ * d_);
    e_.resize(tokens_);
    e_variance_.resize(tokens_);
    scale_variance_.resize(tokens_);
    std::vector<double> state;
    for (int64_t t = 0; t < tokens_; ++t) {
      const double D = output_.denominators[t];
      std::vector<double> variance(d_);
      double D_variance = 0;
      for (int64_t s = 0; s <= t; ++s) {
        const Pair pair = PairOf(t, s);
        const double own = Near(t, s) ? kV * Square(pair.weight) : 2 * kV * Square(pair.squares);
        // Of far pairs the queries' products are rounded too; z is read in float32.
        D_variance += (Near(t, s) ? own : 2 * own) + pair.scaled;
        for (int c = 0; c < d_; ++c) {
          variance[c] += (own + pair.scaled) * Square(rows_.v[s * d_ + c]);
        }
      }
      if (r_ > 0 && t >= spec_.block) {
        if (t % spec_.block == 0) state = State(t / spec_.block, true, y_, rows_.v);
        const double kept = std::exp(decay_[t] - SumBefore(t / spec_.block));
        for (int f = 0; f < features_; ++f) {
          const double phi = kept * Feature(&x_[t * r_], f);
          for (int c = 0; c < d_; ++c) variance[c] += kRead() * Square(phi * state[f * d_ + c]);
        }
      }
      scale_variance_[t] = D_variance / Square(D);
      for (int c = 0; c < d_; ++c) {
        const double out = output_.out[t * d_ + c], a = g_[t * d_ + c] / D;
        const double out_variance = variance[c] / Square(D) + Square(out) * scale_variance_[t];
        error_.out[t * d_ + c] = std::sqrt(out_variance);
        a_[t * d_ + c] = a;
        e_[t] -= a * out;
        e_variance_[t] += Square(a) * out_variance;
      }
      e_variance_[t] += Square(e_[t]) * scale_variance_[t];
    }
  }

  // dw[t,s], and the variance of its error.
  struct Gradient {
    double value, variance;
  };
  Gradient WeightGradient(int64_t t, int64_t s) const {
    Gradient gradient{e_[t], e_variance_[t]};
    for (int c = 0; c < d_; ++c) {
      const double term = a_[t * d_ + c] * rows_.v[s * d_ + c];
      gradient.value += term;
      gradient.variance += kV * Square(term);
    }
    gradient.variance += Square(gradient.value) * scale_variance_[t];
    return gradient;
  }

  // What pairs bring: the errors of dw, and the roundings of near weights and of keys' and queries'
  // products.
  void Pairs() {
    std::vector<double> shared_near(spec_.near_dim()), shared_far(r_);
    for (int64_t t = 0; t < tokens_; ++t) {
      std::fill(shared_near.begin(), shared_near.end(), 0);
      std::fill(shared_far.begin(), shared_far.end(), 0);
      for (int64_t s = 0; s <= t; ++s) {
        const Pair pair = PairOf(t, s);
        const bool near = Near(t, s), own_far = !near && spec_.mixed();
        const auto [of_weight, variance] = WeightGradient(t, s);
        const double deviation = std::abs(pair.slope) * std::sqrt(variance);
        const double rounding = near ? kV * Square(pair.slope * of_weight) : 0;
        auto& q = own_far ? error_.rows.far_q : error_.rows.near_q;
        auto& k = own_far ? error_.rows.far_k : error_.rows.near_k;
        for (int i = 0; i < pair.width; ++i) {
          (near ? shared_near : shared_far)[i] += deviation * std::abs(pair.k[i]);
          q[t * pair.width + i] += rounding * Square(pair.k[i]);
          k[s * pair.width + i] += (rounding + Square(deviation)) * Square(pair.q[i]);
        }
        if (!near) {
          // dx_i = 2 sum_j x_j y_i y_j dw, its products y_i y_j rounded in S; dy_i from R.
          const double *x = pair.q, *y = pair.k;
          const double kept = std::exp(decay_[t] - decay_[s]);
          for (int i = 0; i < r_; ++i) {
            const double factor =
                linear_ ? (spec_.decay_gate ? kV * Square(kept * of_weight) : 0)
                        : 4 * Square(of_weight) *
                              (kV * kept * pair.squares + Square(kept) * ScaledGradient(pair, i));
            q[t * r_ + i] += factor * Square(y[i]);
            k[s * r_ + i] += factor * Square(x[i]);
          }
        }
        const double of_product =
            near ? kV * Square(pair.weight) : 2 * kV * Square(pair.squares) + pair.scaled;
        term_variance_[s] += of_product * Square(of_weight);
        term_variance_[t] += of_product * Square(of_weight);
        for (int c = 0; c < d_; ++c) {
          error_.rows.v[s * d_ + c] +=
              Square(a_[t * d_ + c]) *
              (of_product + Square(pair.weight) * (kV + scale_variance_[t]));
        }
      }
      for (int i = 0; i < spec_.near_dim(); ++i) {
        error_.rows.near_q[t * spec_.near_dim() + i] += Square(shared_near[i]);
      }
      for (int i = 0; i < r_; ++i) {
        auto& q = spec_.mixed() ? error_.rows.far_q : error_.rows.near_q;
        q[t * r_ + i] += Square(shared_far[i]);
      }
    }
  }

  // What rounding the states themselves brings, and the products that read them.
  void States() {
    auto& of_x = spec_.mixed() ? error_.rows.far_q : error_.rows.near_q;
    auto& of_y = spec_.mixed() ? error_.rows.far_k : error_.rows.near_k;
    std::vector<double> S, R;
    for (int64_t t = 0; t < tokens_; ++t) {
      if (t % spec_.block == 0) {
        S = State(t / spec_.block, true, y_, rows_.v);
        R = State(t / spec_.block, false, x_, a_);
      }
      const double read = std::exp(decay_[t] - SumBefore(t / spec_.block));
      const double kept = std::exp(SumAfter(t / spec_.block) - decay_[t]);
      for (int f = 0; f < features_ && linear_; ++f) {
        const double x = read * x_[t * r_ + f], y = kept * y_[t * r_ + f];
        double of_S = 0, of_R = 0;
        for (int c = 0; c < d_; ++c) {
          of_S += Square(S[f * d_ + c] * a_[t * d_ + c]);
          of_R += Square(R[f * d_ + c] * rows_.v[t * d_ + c]);
          error_.rows.v[t * d_ + c] += kV * Square(y * R[f * d_ + c]);
        }
        of_x[t * r_ + f] += kV * Square(read) * of_S;
        of_y[t * r_ + f] += kV * Square(kept) * of_R;
        term_variance_[t] += kV * (Square(y) * of_R + Square(x) * of_S);
      }
      for (int f = 0; f < features_ && !linear_; ++f) {
        const int i = f / r_, j = f % r_;
        const double x = read * x_[t * r_ + j], y = kept * y_[t * r_ + j], phi = y * y_[t * r_ + i];
        double of_S = 0, of_R = 0;
        for (int c = 0; c < d_; ++c) {
          of_S += Square(S[f * d_ + c] * a_[t * d_ + c]);
          of_R += Square(R[f * d_ + c] * rows_.v[t * d_ + c]);
          error_.rows.v[t * d_ + c] += 4 * kV * Square(phi * R[f * d_ + c]);
        }
        of_x[t * r_ + i] += 4 * kV * Square(x) * of_S;
        of_y[t * r_ + i] += 4 * kV * Square(y) * of_R;
        const double of_query = x * x_[t * r_ + i];
        term_variance_[t] += 2 * kV * (Square(phi) * of_R + Square(of_query) * of_S);
      }
    }
  }

  void LogDecays() {
    double terms = 0;
    for (int64_t u = tokens_ - 1; u >= 0; --u) {
      terms += term_variance_[u];
      error_.rows.log_decay[u] = terms;
    }
    for (int64_t t = 0; t < tokens_; ++t) {
      double shared = 0;
      for (int64_t u = 1; u <= t; ++u) {  // of the keys before token u
        const int64_t s = u - 1;
        shared += PairOf(t, s).weight * std::sqrt(WeightGradient(t, s).variance);
        error_.rows.log_decay[u] += Square(shared);
      }
    }
  }

  const AttentionSpec spec_;
  const definition::HeadRows& rows_;
  const std::vector<double>&x_, &y_;
  const int64_t tokens_;
  const std::vector<double>& g_;
  const int d_, r_;
  const bool linear_;  // whether features are rows, not their products
  const int features_;
  const definition::HeadOutput output_;
  std::vector<double> a_, e_, e_variance_, scale_variance_;  // the last: relative, of D
  std::vector<double> decay_;                                // G, zero without a decay gate
  std::vector<double> term_variance_;  // of what a token adds to the gradients of log decays
  TrainingError error_;
};

}  // namespace polysketch::testing
