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
// The forward's errors come back through D and e = -(g . out) / D. float32 sums (2^-24) are far
// below all of these.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/reference/attention_gradient.h"
#include "tests/kernels/noisy.h"

namespace polysketch::testing {

// Standard deviations, shaped as what they belong to.
struct TrainingError {
  std::vector<double> out;
  reference::HeadRows rows;
};

class TrainingErrorModel {
 public:
  TrainingErrorModel(const AttentionSpec& spec, const reference::HeadRows& rows, int64_t tokens,
                     const std::vector<double>& g)
      : spec_(spec),
        rows_(rows),
        x_(spec.mixed() ? rows.far_q : rows.near_q),
        y_(spec.mixed() ? rows.far_k : rows.near_k),
        tokens_(tokens),
        g_(g),
        d_(spec.head_dim),
        r_(spec.sketched() ? spec.far_dim() : 0),
        output_(reference::AttendHead(spec, rows, tokens)) {
    error_.out.resize(output_.out.size());
    for (const auto member :
         {&reference::HeadRows::near_q, &reference::HeadRows::near_k, &reference::HeadRows::far_q,
          &reference::HeadRows::far_k, &reference::HeadRows::v}) {
      (error_.rows.*member).resize((rows.*member).size());  // variances until the end
    }
    Forward();
    Pairs();
    if (r_ > 0) States();
    for (const auto member :
         {&reference::HeadRows::near_q, &reference::HeadRows::near_k, &reference::HeadRows::far_q,
          &reference::HeadRows::far_k, &reference::HeadRows::v}) {
      for (double& x : error_.rows.*member) x = std::sqrt(x);
    }
  }
  const TrainingError& error() const { return error_; }

 private:
  static constexpr double kV = 0x1p-16 / 3;

  bool Near(int64_t t, int64_t s) const { return r_ == 0 || t / spec_.block == s / spec_.block; }
  struct Pair {
    double weight, slope;
    double squares;  // sum of the squares of the dot product's terms
    const double *q, *k;
    int width;
  };
  Pair PairOf(int64_t t, int64_t s) const {
    const bool near = Near(t, s);
    const int width = near ? spec_.near_dim() : r_;
    Pair pair{
        0,    0, 0, &(near ? rows_.near_q : x_)[t * width], &(near ? rows_.near_k : y_)[s * width],
        width};
    double dot = 0;
    for (int i = 0; i < width; ++i) {
      dot += pair.q[i] * pair.k[i];
      pair.squares += Square(pair.q[i] * pair.k[i]);
    }
    const reference::PairWeight weight = reference::WeightOf(spec_, near, dot);
    pair.weight = weight.weight;
    pair.slope = weight.slope;
    return pair;
  }
  // Sum of phi(rows) values^T over the blocks before `block` if `before`, else over those after it.
  std::vector<double> State(int64_t block, bool before, const std::vector<double>& rows,
                            const std::vector<double>& values) const {
    std::vector<double> state(r_ * r_ * d_);
    for (int64_t s = 0; s < tokens_; ++s) {
      if (before ? s / spec_.block >= block : s / spec_.block <= block) continue;
      for (int f = 0; f < r_ * r_; ++f) {
        const double phi = rows[s * r_ + f / r_] * rows[s * r_ + f % r_];
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
        D_variance += Near(t, s) ? own : 2 * own;
        for (int c = 0; c < d_; ++c) variance[c] += own * Square(rows_.v[s * d_ + c]);
      }
      if (r_ > 0 && t >= spec_.block) {
        if (t % spec_.block == 0) state = State(t / spec_.block, true, y_, rows_.v);
        for (int f = 0; f < r_ * r_; ++f) {
          const double phi = x_[t * r_ + f / r_] * x_[t * r_ + f % r_];
          // The query's product and the state's element.
          for (int c = 0; c < d_; ++c) variance[c] += 4 * kV * Square(phi * state[f * d_ + c]);
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
        double of_weight = e_[t], variance = e_variance_[t];
        for (int c = 0; c < d_; ++c) {
          const double term = a_[t * d_ + c] * rows_.v[s * d_ + c];
          of_weight += term;
          variance += kV * Square(term);
        }
        variance += Square(of_weight) * scale_variance_[t];
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
          for (int i = 0; i < r_; ++i) {
            const double factor = 4 * kV * Square(of_weight) * pair.squares;
            q[t * r_ + i] += factor * Square(y[i]);
            k[s * r_ + i] += factor * Square(x[i]);
          }
        }
        const double of_product = near ? kV * Square(pair.weight) : 2 * kV * Square(pair.squares);
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
      for (int f = 0; f < r_ * r_; ++f) {
        const int i = f / r_, j = f % r_;
        const double x = x_[t * r_ + j], y = y_[t * r_ + j], phi = y * y_[t * r_ + i];
        double of_S = 0, of_R = 0;
        for (int c = 0; c < d_; ++c) {
          of_S += Square(S[f * d_ + c] * a_[t * d_ + c]);
          of_R += Square(R[f * d_ + c] * rows_.v[t * d_ + c]);
          error_.rows.v[t * d_ + c] += 4 * kV * Square(phi * R[f * d_ + c]);
        }
        of_x[t * r_ + i] += 4 * kV * Square(x) * of_S;
        of_y[t * r_ + i] += 4 * kV * Square(y) * of_R;
      }
    }
  }

  const AttentionSpec spec_;
  const reference::HeadRows& rows_;
  const std::vector<double>&x_, &y_;
  const int64_t tokens_;
  const std::vector<double>& g_;
  const int d_, r_;
  const reference::HeadOutput output_;
  std::vector<double> a_, e_, e_variance_, scale_variance_;  // the last: relative, of D
  TrainingError error_;
};

}  // namespace polysketch::testing
