// Error bounds of composite ops by first-order propagation: every value carries the standard
// deviation that float32 rounding of the steps before it would give it, if roundings were
// independent. A sum of n terms whose partial sums stay below A = sum |terms| collects n roundings
// of at most u A: sqrt(n) u A (Higham and Mary's probabilistic analysis). A kernel that computes
// the right thing stays within a small multiple; the worst case, n u A, would hide real faults in
// a chain of four products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/reference/matrix.h"

namespace polysketch::testing {

inline constexpr double kU = 0x1p-24;  // unit roundoff of float32

// How many standard deviations a test allows: thousands of outputs are compared, and roundings are
// not quite independent.
inline constexpr double kDeviations = 6;

struct Noisy {
  double value = 0;
  double error = 0;
};
using NoisyRow = std::vector<Noisy>;

inline double Square(double x) { return x * x; }

inline NoisyRow Exact(const float* x, int64_t size) {
  NoisyRow row(size);
  for (int64_t i = 0; i < size; ++i) row[i].value = x[i];
  return row;
}

// Rounded to a format of this unit roundoff: an error of up to unit |x|, uniform.
inline NoisyRow NoisyRound(NoisyRow x, double unit) {
  for (Noisy& value : x) {
    value.error = std::sqrt(Square(value.error) + Square(unit * value.value) / 3);
  }
  return x;
}

// Rounded to integers of eight bits with one scale: an error of up to half a step, uniform.
inline NoisyRow NoisyRoundToBytes(NoisyRow x) {
  double largest = 0;
  for (const Noisy& value : x) largest = std::max(largest, std::abs(value.value));
  for (Noisy& value : x) value.error = std::hypot(value.error, largest / 254 / std::sqrt(3));
  return x;
}

inline NoisyRow NoisyMultiply(const NoisyRow& x, const Matrix& w) {
  const auto& matrix = reference::Cast(w);
  NoisyRow y(w.out());
  for (int64_t o = 0; o < w.out(); ++o) {
    double absolute = 0, inherited = 0;
    for (int64_t i = 0; i < w.in(); ++i) {
      const double term = x[i].value * matrix.at(i, o);
      y[o].value += term;
      absolute += std::abs(term);
      inherited += Square(x[i].error * matrix.at(i, o));
    }
    y[o].error = std::sqrt(inherited + w.in() * Square(kU * absolute));
  }
  return y;
}

inline NoisyRow NoisyNorm(const NoisyRow& x, const NormWeights& norm) {
  const double n = static_cast<double>(x.size());
  double mean = 0, magnitude = 0, variance = 0, inherited = 0;
  const bool centres = norm.kind == NormKind::kLayer;
  for (const Noisy& value : x) {
    if (centres) mean += value.value / n;
    magnitude += std::abs(value.value) / n;
    inherited += Square(value.error) / n;
  }
  for (const Noisy& value : x) variance += Square(value.value - mean) / n;
  const double sigma = std::sqrt(variance + norm.epsilon);
  // The mean: n roundings of at most u n magnitude, divided by n, and what its terms bring.
  const double mean_error = centres ? std::sqrt(n * Square(kU * magnitude) + inherited / n) : 0;
  // The relative error of 1 / sigma: half of the variance's, which sums n squares, and what they
  // bring.
  const double scale_error = std::sqrt(n * Square(kU) + inherited / Square(sigma) + Square(4 * kU));
  NoisyRow y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double centred = x[i].value - mean;
    const double scaled = centred / sigma * norm.scale[i];
    y[i].value = scaled + (centres ? norm.bias[i] : 0);
    y[i].error =
        std::sqrt(Square(norm.scale[i] / sigma) *
                      (Square(x[i].error) + Square(mean_error) + Square(kU * centred)) +
                  Square(scaled * scale_error) + Square(2 * kU * scaled) + Square(kU * y[i].value));
  }
  return y;
}

// gelu(x) = x / 2 (1 + tanh z): z has four roundings, |z| sech^2 z < 0.45; tanh of 2 ulp; the sum
// and two products. Together below 8 u |x|. |gelu'| < 1.13.
inline Noisy NoisyGelu(const Noisy& x, double gelu) {
  return {gelu, std::sqrt(Square(1.13 * x.error) + Square(8 * kU * x.value))};
}

inline Noisy NoisyProduct(const Noisy& a, const Noisy& b) {
  const double product = a.value * b.value;
  return {product,
          std::sqrt(Square(a.value * b.error) + Square(b.value * a.error) + Square(kU * product))};
}

}  // namespace polysketch::testing
