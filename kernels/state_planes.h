// The two 16-bit planes in which StateFormat::kBf16 stores the float32 values of S. The upper plane
// is the value rounded to bf16 (ties away from zero) and is read alone in decode steps; together
// the planes are exact in both directions, modulo 2^32. The functions also compile for a GPU.
#pragma once

#include <cstdint>

namespace polysketch {

constexpr uint16_t UpperPlane(uint32_t bits) {
  return static_cast<uint16_t>((bits + 0x8000u) >> 16);
}
constexpr uint16_t LowerPlane(uint32_t bits) { return static_cast<uint16_t>(bits); }
constexpr uint32_t JoinPlanes(uint16_t upper, uint16_t lower) {
  return (static_cast<uint32_t>(upper) - (lower >> 15)) << 16 | lower;
}

}  // namespace polysketch
