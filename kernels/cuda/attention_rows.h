// Rows of 16 bits that attention takes and gives in place of floats.
#pragma once

#include <cstdint>

namespace polysketch::cuda {

// Rows of queries and keys as AttentionInput has them, rounded to bf16.
struct Bf16Rows {
  const uint16_t* near_q = nullptr;
  const uint16_t* near_k = nullptr;
  const uint16_t* far_q = nullptr;
  const uint16_t* far_k = nullptr;
};

// Where attention stores its result [M, H, d]: floats, or 16-bit floats.
struct AttentionOutput {
  float* floats = nullptr;
  uint16_t* halves = nullptr;
  bool bf16 = true;  // the format of `halves`
};

}  // namespace polysketch::cuda
