// How far float32 may be off in Backend::HeadMaps.
#pragma once

#include <cmath>
#include <cstddef>

#include "tests/kernels/noisy.h"

namespace polysketch::testing {

// Of element i of the output: a rounding for each term and two more, of the sum of the terms'
// magnitudes. The arrays are those of the op.
inline double HeadMapsError(const float* x, int heads, int width, const float* maps,
                            const float* biases, int size, size_t i) {
  const size_t m = i / size, head = m % heads, j = i % size;
  double sum = std::abs(biases[head * size + j]);
  for (int k = 0; k < width; ++k) {
    sum += std::abs(static_cast<double>(x[m * width + k]) * maps[(head * width + k) * size + j]);
  }
  return (width + 2) * kU * sum;
}

}  // namespace polysketch::testing
