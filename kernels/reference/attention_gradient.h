// Attention of one head over a whole sequence, and its gradients, by the definition: all pairs
// s <= t in float64. The training kernels (kernels/cuda/training) are tested against it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_spec.h"

namespace polysketch::reference {

// Rows [tokens][width]. Only mixed kinds have far_q and far_k here: in other recurrent kinds the
// far rows equal the near rows, and KV kinds have no far part. log_decay [tokens] with a decay gate.
// coefficients: a_0 to a_p of polynomial_square.
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
PairWeight WeightOf(const AttentionSpec& spec, bool near, double dot,
                    const std::vector<double>& coefficients = {});

HeadOutput AttendHead(const AttentionSpec& spec, const HeadRows& rows, int64_t tokens);

// Gradients of sum(out * g) with respect to each element of `rows`; g [tokens][d]. With a = g / D
// (D the denominator) and e = -(g . out) / D, the gradient of w[t,s] is a_t . v_s + e_t and the
// gradient of v_s is sum_t w[t,s] a_t. The gradient of the log decay of token u is the sum over s < u
// <= t of the weights times their gradients; that of coefficient a_i is the sum of 2 P x^i times
// the gradients of the weights.
HeadRows AttendHeadGradients(const AttentionSpec& spec, const HeadRows& rows, int64_t tokens,
                             const std::vector<double>& g);

}  // namespace polysketch::reference
