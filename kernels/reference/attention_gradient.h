// Attention of one head over a whole sequence, and its gradients, by the definition: all pairs
// s <= t in float64. What the training kernels (kernels/cuda/training) are tested against.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_spec.h"

namespace polysketch::reference {

// Rows [tokens][width]. Kinds without near rows of their own have only the near ones here (the far
// ones are the same then), as have the KV kinds.
struct HeadRows {
  std::vector<double> near_q, near_k, far_q, far_k, v;
};

struct HeadOutput {
  std::vector<double> out;           // [tokens][d]
  std::vector<double> denominators;  // [tokens]: c + sum_s w[t,s]
};

// How a pair's weight depends on its dot product.
struct PairWeight {
  double weight = 0;
  double slope = 0;  // its derivative
};
PairWeight WeightOf(const AttentionSpec& spec, bool near, double dot);

HeadOutput AttendHead(const AttentionSpec& spec, const HeadRows& rows, int64_t tokens);

// Gradients of sum(out * g) by each element of `rows`; g [tokens][d]. With a = g / D (D the
// denominator) and e = -(g . out) / D, a weight's gradient is a_t . v_s + e_t, and v_s's is
// sum_t w[t,s] a_t.
HeadRows AttendHeadGradients(const AttentionSpec& spec, const HeadRows& rows, int64_t tokens,
                             const std::vector<double>& g);

}  // namespace polysketch::reference
