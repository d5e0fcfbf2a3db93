// Weights in the layout of the cpu backend: panels of 32 output columns. A row of a panel is one or
// two cache lines, and a product reads a panel front to back. Columns from `out` on are 0.
//   f32, f16  [ceil(out / 32)][in][32]
//   bf16      [ceil(out / 32)][ceil(in / 2)][32][2]: a 32-bit word holds two neighbours along `in`,
//             the operand of dot products of bf16 pairs. A shift and a mask widen them, without an
//             instruction that crosses lanes
//   q8        [ceil(out / 32)][ceil(in / 4)][32][4]: a 32-bit word holds four neighbours along
//             `in`, the operand of byte dot products (VNNI) and byte tiles (AMX). Each column has a
//             scale and the sum of its integers
//   q4        [ceil(out / 32)][groups of 32]: a group is 32 bf16 scales, then [4][32][4]. Byte j of
//             a word in row i holds elements 8 i + j (lower half) and 8 i + 4 + j (upper half) of
//             the group, each plus 8
#pragma once

#include <cstdint>
#include <memory>

#include "base/page_arena.h"
#include "kernels/matrix.h"
#include "kernels/quantize.h"

namespace polysketch::cpu {

inline constexpr int kPanelColumns = 32;
// Bytes of the scales of a group of a q4 panel, and of the whole group.
inline constexpr int64_t kQ4ScaleBytes = 2 * kPanelColumns;
inline constexpr int64_t kQ4GroupBytes = kQ4ScaleBytes + kQ4Group / 2 * kPanelColumns;

class PackedMatrix final : public Matrix {
 public:
  // w [in, out] row-major, or [out, in] if `transpose`.
  PackedMatrix(const HostMatrix& w, bool transpose, DataType type, PageArena* arena);

  int64_t panels() const { return (out() + kPanelColumns - 1) / kPanelColumns; }
  // Rows of a panel, of 32 elements or 32 words.
  int64_t depth() const { return (in() + neighbours() - 1) / neighbours(); }
  // T: float, uint16_t (f16), uint32_t (words of bf16), int8_t (q8) or uint8_t (q4).
  template <typename T>
  const T* panel(int64_t p) const {
    return reinterpret_cast<const T*>(data_.get() + p * panel_bytes());
  }
  // q8, for every column, padded to whole panels: its scale; and 128 times the sum of its integers,
  // which is what activations stored as unsigned bytes (plus 128) add to a product.
  const float* scales() const { return scales_.get(); }
  const int32_t* biases() const { return biases_.get(); }
  // Element [k, n] as float32.
  float At(int64_t k, int64_t n) const;

 private:
  // Elements along `in` of a 32-bit word.
  int64_t neighbours() const {
    return type() == DataType::kQ8 ? 4 : type() == DataType::kBf16 ? 2 : 1;
  }
  int64_t groups() const { return Q4Groups(in()); }
  int64_t panel_bytes() const {
    if (type() == DataType::kQ4) return groups() * kQ4GroupBytes;
    return depth() * neighbours() * kPanelColumns * DataTypeBytes(type());
  }
  // Element [k, n] of any type but q4.
  int64_t Index(int64_t k, int64_t n) const {
    const int64_t row = n / kPanelColumns * depth() + k / neighbours();
    return (row * kPanelColumns + n % kPanelColumns) * neighbours() + k % neighbours();
  }
  template <typename T>
  T* element(int64_t k, int64_t n) const {
    return reinterpret_cast<T*>(data_.get()) + Index(k, n);
  }
  // q4: the first byte of the group of element [k, n], the byte of the element, and its scale.
  int64_t GroupQ4(int64_t k, int64_t n) const {
    return (n / kPanelColumns * groups() + k / kQ4Group) * kQ4GroupBytes;
  }
  uint8_t* PairQ4(int64_t k, int64_t n) const {
    const int64_t word = k % kQ4Group / 8 * kPanelColumns + n % kPanelColumns;
    return data_.get() + GroupQ4(k, n) + kQ4ScaleBytes + word * 4 + k % 4;
  }
  uint16_t* ScaleQ4(int64_t k, int64_t n) const {
    return reinterpret_cast<uint16_t*>(data_.get() + GroupQ4(k, n)) + n % kPanelColumns;
  }
  void PackFloats(const HostMatrix& w, bool transpose);
  void PackQ8(const HostMatrix& w, bool transpose, PageArena* arena);
  void PackQ4(const HostMatrix& w, bool transpose);

  std::shared_ptr<uint8_t[]> data_;
  std::shared_ptr<float[]> scales_;
  std::shared_ptr<int32_t[]> biases_;
};

inline const PackedMatrix& Packed(const Matrix& w) { return static_cast<const PackedMatrix&>(w); }

}  // namespace polysketch::cpu
