// Quantisation. All backends use these functions, so that they compute with the same integers.
//
// 8 bits, symmetric around zero:
//   inverse = 127 / max|x|,  q = nearest_even(x * inverse) in [-127, 127],  x ~ q * (max|x| / 127).
// Weights are quantised by output column, activations by row (token). The sum of products of
// integers is exact in int32 (127 * 255 * K < 2^31 for K < 66,000) and is scaled once at the end.
//
// 4 bits, weights only: each group of 32 elements along the input has a scale, a bf16 number of
// either sign, and integers q in [-8, 7], x ~ q * scale. The scale is one of a few candidates
// -m / c, m the element of largest magnitude: the one with the smallest squared error, the first
// among equals. A product is the exact sum of integers of each group times the group's scale, added
// in the order of the groups. The cpu and cuda backends read a scale as a signed byte times a unit
// of its column (kernels/host_matrix.h), which moves it by at most 1/254 of the column's largest.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/half.h"

namespace polysketch {

inline constexpr float kQuantMax = 127.0f;
// A vector whose elements are all smaller than this counts as zero, since 127 / max would overflow.
inline constexpr float kQuantTiny = 1e-35f;
// Maximum length of a vector whose product fits int32.
inline constexpr int64_t kQuantLongest = 66000;

// The scale of a vector and its inverse. A NaN or infinity in the vector makes the scale NaN or
// infinite, and so the result.
struct QuantScale {
  float scale;
  float inverse;

  // magnitude: the largest |x|, or NaN if an element is NaN.
  // limit: the integer of the largest element.
  static QuantScale Of(float magnitude, float limit = kQuantMax) {
    if (magnitude < kQuantTiny * (limit / kQuantMax)) return {0.0f, 0.0f};
    return {magnitude / limit, limit / magnitude};
  }
};

// The largest |x| of n elements `stride` apart; NaN counts as the largest.
inline float LargestMagnitude(const float* x, int64_t n, int64_t stride) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i * stride]) & 0x7fffffffu;
    if (bits > largest) largest = bits;
  }
  return std::bit_cast<float>(largest);
}

inline constexpr int64_t kQ4Group = 32;
inline int64_t Q4Groups(int64_t in) { return (in + kQ4Group - 1) / kQ4Group; }

// The integer of x in [-8, 7]; inverse is 1 / scale, or 0.
inline int8_t QuantizeQ4(float x, float inverse) {
  const float q = std::nearbyint(x * inverse);
  return static_cast<int8_t>(std::clamp(q == q ? q : 0.0f, -8.0f, 7.0f));
}

// Quantises n <= kQ4Group elements: writes their integers to q and returns the bits of their bf16
// scale. An element that is not finite makes the scale, and so the result, not finite.
inline uint16_t QuantizeGroupQ4(const float* x, int64_t n, int8_t* q) {
  // c = 8 uses the whole range, a larger c clamps the largest elements, a smaller c does not reach
  // 8.
  static constexpr float kCandidates[] = {8.0f, 7.0f,  7.5f,  8.5f,  9.0f,
                                          9.5f, 10.0f, 10.5f, 11.0f, 12.0f};
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!(std::abs(x[i]) <= std::abs(largest))) largest = x[i];
  }
  if (!(std::abs(largest) >= kQuantTiny) || !std::isfinite(largest)) {
    std::fill_n(q, n, int8_t{0});
    return FloatToBf16(std::isfinite(largest) ? 0.0f : largest);
  }
  double min_error = -1;
  uint16_t best = 0;
  for (const float c : kCandidates) {
    const uint16_t bits = FloatToBf16(-largest / c);
    const float scale = Bf16ToFloat(bits), inverse = 1.0f / scale;
    double error = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double off =
          static_cast<double>(x[i]) -
          static_cast<double>(QuantizeQ4(x[i], inverse)) * static_cast<double>(scale);
      error += off * off;
    }
    if (min_error < 0 || error < min_error) {
      min_error = error;
      best = bits;
    }
  }
  const float inverse = 1.0f / Bf16ToFloat(best);
  for (int64_t i = 0; i < n; ++i) q[i] = QuantizeQ4(x[i], inverse);
  return best;
}

inline int8_t Quantize(float x, const QuantScale& scale) {
  const float q = std::nearbyint(x * scale.inverse);
  return static_cast<int8_t>(q >= -kQuantMax && q <= kQuantMax ? q : 0.0f);
}

}  // namespace polysketch
