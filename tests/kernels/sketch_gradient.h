// The degree-two random sketch of a recording, f(x) = (x S1) * (x S2), in float64, and the gradient
// through it.
#pragma once

#include <vector>

#include "tests/kernels/recording.h"

namespace polysketch::testing {

namespace sketch_gradient {

// x [tokens][d] times S [d][r].
inline std::vector<double> Product(const std::vector<double>& x, const std::vector<double>& S,
                                   int64_t d, int64_t r) {
  std::vector<double> out(x.size() / d * r);
  for (size_t i = 0; i < out.size(); ++i) {
    for (int64_t c = 0; c < d; ++c) out[i] += x[i / r * d + c] * S[c * r + i % r];
  }
  return out;
}

}  // namespace sketch_gradient

inline std::vector<double> DegreeTwoSketch(const Recording& recording,
                                           const std::vector<double>& x) {
  const int64_t d = recording.extent("sketch1", 0), r = recording.extent("sketch1", 1);
  std::vector<double> out = sketch_gradient::Product(x, recording.Doubles("sketch1"), d, r);
  const std::vector<double> other = sketch_gradient::Product(x, recording.Doubles("sketch2"), d, r);
  for (size_t i = 0; i < out.size(); ++i) out[i] *= other[i];
  return out;
}

// The gradient by x, of a loss whose gradient by f(x) is `of_sketch`.
inline std::vector<double> DegreeTwoSketchGradient(const Recording& recording,
                                                   const std::vector<double>& x,
                                                   const std::vector<double>& of_sketch) {
  const int64_t d = recording.extent("sketch1", 0), r = recording.extent("sketch1", 1);
  const std::vector<double> S[2] = {recording.Doubles("sketch1"), recording.Doubles("sketch2")};
  std::vector<double> out(x.size());
  for (int side = 0; side < 2; ++side) {
    std::vector<double> factor = sketch_gradient::Product(x, S[1 - side], d, r);
    for (size_t i = 0; i < factor.size(); ++i) factor[i] *= of_sketch[i];
    for (size_t i = 0; i < out.size(); ++i) {
      for (int64_t j = 0; j < r; ++j) out[i] += factor[i / d * r + j] * S[side][i % d * r + j];
    }
  }
  return out;
}

}  // namespace polysketch::testing
