// 8-bit quantisation, symmetric around zero, shared by every backend so that all of them compute
// with the same integers:
//   inverse = 127 / max|x|,  q = nearest_even(x * inverse) in [-127, 127],  x ~ q * (max|x| / 127).
// Weights are quantised by output column, activations by row (token); the product of integers is
// exact in int32 (127 * 255 * K < 2^31 for K < 66,000) and is scaled once at the end.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace polysketch {

inline constexpr float kQuantMax = 127.0f;
// Vectors smaller than this everywhere count as zero: 127 / max would overflow.
inline constexpr float kQuantTiny = 1e-35f;
// Longest vector whose product stays within int32.
inline constexpr int64_t kQuantLongest = 66000;

// The scale of a vector and what its elements are multiplied by. A NaN or infinity in the vector
// makes the scale NaN or infinite, so that it shows in the result.
struct QuantScale {
  float scale;
  float inverse;

  // magnitude: the largest |x|, or NaN.
  static QuantScale Of(float magnitude) {
    if (magnitude < kQuantTiny) return {0.0f, 0.0f};
    return {magnitude / kQuantMax, kQuantMax / magnitude};
  }
};

// The largest |x| of n elements `stride` apart; NaN counts as largest.
inline float LargestMagnitude(const float* x, int64_t n, int64_t stride) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i * stride]) & 0x7fffffffu;
    if (bits > largest) largest = bits;
  }
  return std::bit_cast<float>(largest);
}

inline int8_t Quantize(float x, const QuantScale& scale) {
  const float q = std::nearbyint(x * scale.inverse);
  return static_cast<int8_t>(q >= -kQuantMax && q <= kQuantMax ? q : 0.0f);
}

}  // namespace polysketch
