// A far part beside a window whose weights have another size, on any backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

// The tolerance of each output, of rows and their oracle's output.
using ToleranceOf =
    std::function<std::vector<double>(const AttentionRows& rows, const OracleOutput& oracle)>;

// Far weights of zero leave the window as it is without a far part, to the bit. So do scores that
// are so large that the exponential of their difference to the far part's is zero; those far below
// it leave the far part alone. parts: rows of the steps, which are all tokens.
inline void ExpectFarPartBesideWindow(Backend& backend, const AttentionSpec& spec,
                                      const std::vector<int>& parts, Random* random,
                                      const ToleranceOf& tolerance_of) {
  AttentionSpec window = spec;
  window.far_size = window.far_length = 0;
  window.decay_gate = false;
  int tokens = 0;
  for (const int rows : parts) tokens += rows;
  Sequence sequence = RandomSequence(spec, tokens, random);
  AttentionRows& rows = sequence.layers[0];
  // Gates that leave one token of the far part could leave a weight near zero, whose relative error
  // has no bound.
  for (float& log_decay : rows.log_decay) log_decay /= 16;
  const std::vector<float> far_q = rows.far_q;
  std::ranges::fill(rows.far_q, 0.0f);
  const auto want = RunAlone(backend, window, sequence, parts);
  EXPECT_EQ(RunAlone(backend, spec, sequence, parts), want) << Describe(spec);

  rows.far_q = far_q;
  // Every score is its key's first element times the query's: about 200 or -200.
  const auto root = static_cast<float>(std::sqrt(spec.head_dim));
  for (const float score : {200.0f, -200.0f}) {
    const auto one_element = [&](std::vector<float>* x, float first) {
      for (size_t i = 0; i < x->size(); ++i) (*x)[i] = i % spec.head_dim == 0 ? first : 0;
    };
    one_element(&rows.near_k, 1);
    one_element(&rows.near_q, score * root);
    const auto got = RunAlone(backend, spec, sequence, parts)[0];
    const auto near = RunAlone(backend, window, sequence, parts)[0];
    const OracleOutput defined = AttentionOracle(spec, rows, tokens);
    const std::vector<double> tolerance = tolerance_of(rows, defined);
    for (size_t i = 0; i < got.size(); ++i) {
      const int token = static_cast<int>(i) / (spec.heads * spec.head_dim);
      const bool has_far = spec.HasFarState(token + 1) && oracle::Left(spec, token) > spec.sinks;
      ASSERT_TRUE(std::isfinite(got[i]));
      if (score > 0 || !has_far) {
        ASSERT_EQ(got[i], near[i]) << Describe(spec) << " token " << token;
      } else {
        ASSERT_NEAR(got[i], defined.value[i], tolerance[i]) << Describe(spec);
      }
    }
  }
}

}  // namespace polysketch::testing
