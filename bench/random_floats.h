// Inputs of measurements: the same numbers in every run, in [-0.5, 0.5).
#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"

namespace polysketch::bench {

inline AlignedBuffer<float> RandomFloats(int64_t size) {
  AlignedBuffer<float> values(static_cast<size_t>(size));
  uint64_t random = 7;
  for (int64_t i = 0; i < size; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    values[i] = static_cast<float>(static_cast<double>(random >> 40) / (1 << 24) - 0.5);
  }
  return values;
}

}  // namespace polysketch::bench
