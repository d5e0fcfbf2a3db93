// Reading a checkpoint's matrix element by element, for the packers of every backend.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "kernels/backend.h"

namespace polysketch {

// Element `index` of w in row-major order, as float32; at any alignment, since checkpoints promise
// none.
inline float ReadElement(const HostMatrix& w, int64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(w.data) + index * DataTypeBytes(w.type);
  if (w.type == DataType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return w.type == DataType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

}  // namespace polysketch
