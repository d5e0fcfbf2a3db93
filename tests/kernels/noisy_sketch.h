// Error bounds of the sketches, for every backend: the steps of their formulas over noisy.h.
// multiply(x, w) is a product as the backend makes it: with the rounding of its operands, if it
// rounds them.
#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "kernels/reference/row.h"
#include "tests/kernels/noisy.h"

namespace polysketch::testing {

// |got - want| allowed for the `r` values of g(x). tanh_error: relative, of a tanh that is less exact
// than float32's; that of gelu, which halves it, and of the result. gelu_error: absolute, of an
// approximation of gelu.
template <typename Multiply>
std::vector<double> LearnedSketchTolerance(const SketchNetwork& net, const float* x,
                                           const float* want, const Multiply& multiply,
                                           double tanh_error = 0, double gelu_error = 0) {
  std::array<NoisyRow, 2> branch;
  for (int b = 0; b < 2; ++b) {
    branch[b] = Exact(x, net.input);
    for (const SketchNetwork::Level& level : net.branch[b]) {
      NoisyRow hidden = multiply(NoisyNorm(branch[b], level.norm), *level.up);
      for (Noisy& h : hidden) {
        h = NoisyGelu(h, reference::Gelu(h.value));
        h.error = std::hypot(h.error, tanh_error / 2 * h.value, gelu_error);
      }
      branch[b] = multiply(hidden, *level.down);
    }
  }
  std::vector<double> tolerance;
  for (int i = 0; i < net.size; ++i) {
    // sqrt(r) tanh(p / sqrt(r)): slope at most 1; a few roundings of the result.
    const Noisy product = NoisyProduct(branch[0][i], branch[1][i]);
    tolerance.push_back(kDeviations * product.error + 8 * kU * std::abs(product.value) +
                        (kU + 2 * tanh_error) * std::abs(want[i]));
  }
  return tolerance;
}

// The same for f(x).
template <typename Multiply>
std::vector<double> RandomSketchTolerance(const RandomSketch& sketch, const float* x,
                                          const Multiply& multiply) {
  std::vector<NoisyRow> vectors(sketch.levels[0].size(), Exact(x, sketch.input));
  for (const auto& level : sketch.levels) {
    std::vector<NoisyRow> products(vectors.size() / 2, NoisyRow(sketch.size));
    for (size_t j = 0; j < vectors.size(); j += 2) {
      const NoisyRow a = multiply(vectors[j], *level[j]);
      const NoisyRow b = multiply(vectors[j + 1], *level[j + 1]);
      for (int i = 0; i < sketch.size; ++i) products[j / 2][i] = NoisyProduct(a[i], b[i]);
    }
    vectors = products;
  }
  std::vector<double> tolerance;
  for (const Noisy& value : vectors[0]) {
    tolerance.push_back(kDeviations * value.error + kU * std::abs(value.value));
  }
  return tolerance;
}

}  // namespace polysketch::testing
