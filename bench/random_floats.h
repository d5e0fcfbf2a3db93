// Inputs of measurements: the same numbers in every run.
#pragma once

#include <cstdint>
#include <random>

#include "base/aligned_buffer.h"

namespace polysketch::bench {

// A linear congruential generator: the upper bits are the random ones.
using RandomBits =
    std::linear_congruential_engine<uint64_t, 6364136223846793005u, 1442695040888963407u, 0>;

// In [-0.5, 0.5).
inline AlignedBuffer<float> RandomFloats(int64_t size) {
  AlignedBuffer<float> values(static_cast<size_t>(size));
  RandomBits random(7);
  for (float& value : values.span()) {
    value = static_cast<float>(static_cast<double>(random() >> 40) / (1 << 24) - 0.5);
  }
  return values;
}

}  // namespace polysketch::bench
