// Random numbers that are a function of (seed, index) alone: they do not depend on other requests,
// and have no state to save or restore.
#pragma once

#include <cstdint>

namespace polysketch {

// Finaliser of SplitMix64: a bijection of 64 bits that passes BigCrush on a counter.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Uniform in [0, 1), 53 bits. Seeds are mixed first, so that the numbers of seed s + 1 are not
// those of seed s shifted by one.
inline double CounterUniform(uint64_t seed, uint64_t index) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const uint64_t bits = MixBits(MixBits(seed + kGolden) + (index + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace polysketch
