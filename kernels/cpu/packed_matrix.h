// Weights as the cpu backend keeps them: panels of 32 output columns, [ceil(out / 32)][in][32], so
// that one row of a panel is one or two cache lines and a product streams a panel front to back.
// bf16 panels hold columns l and l + 16 in the lower and upper half of 32-bit word l: a shift and a
// mask widen them, without a lane-crossing instruction. Columns behind `out` are 0.
#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"
#include "kernels/backend.h"

namespace polysketch::cpu {

inline constexpr int kPanelColumns = 32;

class PackedMatrix final : public Matrix {
 public:
  // w [in, out] row-major, or [out, in] when transposed.
  PackedMatrix(const HostMatrix& w, bool transpose, DataType type);

  int64_t panels() const { return (out() + kPanelColumns - 1) / kPanelColumns; }
  const float* panel_f32(int64_t p) const {
    return reinterpret_cast<const float*>(data_.data()) + p * in() * kPanelColumns;
  }
  // f16: 32 columns in order.
  const uint16_t* panel_f16(int64_t p) const {
    return reinterpret_cast<const uint16_t*>(data_.data()) + p * in() * kPanelColumns;
  }
  // bf16: 16 words.
  const uint32_t* panel_bf16(int64_t p) const {
    return reinterpret_cast<const uint32_t*>(data_.data()) + p * in() * (kPanelColumns / 2);
  }
  // Element [k, n] as float32.
  float At(int64_t k, int64_t n) const;

 private:
  void Put(int64_t k, int64_t n, float value);

  AlignedBuffer<uint8_t> data_;
};

}  // namespace polysketch::cpu
