// What KV caches hold of keys and values under StateFormat::kF16 and kQ8 on the cpu and reference
// backends. The cuda backend has kernels/cuda/mx_int8.h.
//
// kF16: float16, rounded to nearest, ties to even; magnitudes above 65,504 become that.
// kQ8: 8-bit integers with one scale for each key or value x of a token and kv head,
//
//   scale = max |x| / 127, rounded to 16 significant bits
//   q = nearest_even(x * (1 / scale)) in [-127, 127],  x ~ q * scale
//
// One of the integers is 127 or -127, and the products q * scale are exact in float32. So they have
// the same scale and integers again: a state that was saved as float32 values and loaded has the
// same bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/half.h"
#include "kernels/attention_spec.h"
#include "kernels/quantize.h"

namespace polysketch {

inline constexpr float kLargestF16 = 65504.0f;

// NaN stays NaN.
inline uint16_t RoundToF16(float x) {
  return FloatToF16(x > kLargestF16 ? kLargestF16 : x < -kLargestF16 ? -kLargestF16 : x);
}

// magnitude: the largest |x|, or NaN. If it is not finite, the scale is NaN, and so are the
// products.
inline QuantScale CacheScale(float magnitude) {
  if (magnitude < kQuantTiny) return {0.0f, 0.0f};
  if (!(magnitude <= std::numeric_limits<float>::max())) {
    return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude / kQuantMax);
  const float scale = std::bit_cast<float>((bits + 0x80u) & ~0xffu);
  return {scale, 1.0f / scale};
}

// Rounds a key or a value x [size] to what the cache holds, as float32.
inline void RoundForCache(const AttentionSpec& spec, float* x, int64_t size) {
  if (spec.state_format == StateFormat::kF16) {
    for (int64_t i = 0; i < size; ++i) x[i] = F16ToFloat(RoundToF16(x[i]));
  } else if (spec.cache_scales()) {
    const QuantScale scale = CacheScale(LargestMagnitude(x, size, 1));
    for (int64_t i = 0; i < size; ++i) x[i] = Quantize(x[i], scale) * scale.scale;
  }
}

}  // namespace polysketch
