// Weights in the layout of the cpu backend: panels of 32 output columns. A row of a panel is one or
// two cache lines, and a product reads a panel front to back. Columns from `out` on are 0.
//   f32, f16  [ceil(out / 32)][in][32]
//   bf16      [ceil(out / 32)][ceil(in / 2)][32][2]: a 32-bit word holds two neighbours along `in`,
//             the operand of dot products of bf16 pairs. A shift and a mask widen them, without an
//             instruction that crosses lanes
//   q8        [ceil(out / 32)][ceil(in / 4)][32][4]: a 32-bit word holds four neighbours along
//             `in`, the operand of byte dot products (VNNI) and byte tiles (AMX). Each column has a
//             scale and the sum of its integers
//   q4        [ceil(out / 32)][pairs of groups of 32]: a pair is the scales of both groups,
//             [2][32] signed bytes, then their integers, [2][4][32][4]. Byte j of a word in row i
//             holds elements 8 i + j (lower half) and 8 i + 4 + j (upper half) of the group, each
//             plus 8. A scale is its byte times the unit of the column: the column's largest scale
//             over 127. Of two groups each line of the cache holds one kind only, so that no load
//             crosses a line
#pragma once

#include <cstdint>
#include <memory>

#include "base/page_arena.h"
#include "kernels/matrix.h"
#include "kernels/quantize.h"

namespace polysketch::cpu {

inline constexpr int kPanelColumns = 32;
// Bytes of the integers of a group of a q4 panel, of the scales of a pair of groups, and of the
// pair.
inline constexpr int64_t kQ4GroupBytes = kQ4Group / 2 * kPanelColumns;
inline constexpr int64_t kQ4ScaleBytes = 2 * kPanelColumns;
inline constexpr int64_t kQ4PairBytes = kQ4ScaleBytes + 2 * kQ4GroupBytes;

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
  int64_t panel_bytes() const { return panel_bytes_; }
  // For every column, padded to whole panels. q8 and q4: its scale, or the unit of its scales. q8:
  // 128 times the sum of its integers, which is what activations stored as unsigned bytes (plus
  // 128) add to a product.
  const float* scales() const { return scales_.get(); }
  const int32_t* biases() const { return biases_.get(); }
  // Writes column n [in()] as float32.
  void Column(int64_t n, float* out) const;

 private:
  // Elements along `in` of a 32-bit word.
  static int64_t Neighbours(DataType type) {
    return type == DataType::kQ8 ? 4 : type == DataType::kBf16 ? 2 : 1;
  }
  static int64_t PanelBytes(int64_t in, DataType type);
  static int64_t PackedBytes(int64_t in, int64_t out, DataType type);
  int64_t neighbours() const { return Neighbours(type()); }
  // Element [k, n] of any type but q4.
  int64_t Index(int64_t k, int64_t n) const {
    const int64_t row = n / kPanelColumns * depth() + k / neighbours();
    return (row * kPanelColumns + n % kPanelColumns) * neighbours() + k % neighbours();
  }
  template <typename T>
  T* element(int64_t k, int64_t n) const {
    return reinterpret_cast<T*>(data_.get()) + Index(k, n);
  }
  // q4: the pair of groups of element [k, n], the byte of the element, and that of its scale.
  uint8_t* PairQ4(int64_t k, int64_t n) const {
    return data_.get() + n / kPanelColumns * panel_bytes() + k / (2 * kQ4Group) * kQ4PairBytes;
  }
  uint8_t* ByteQ4(int64_t k, int64_t n) const {
    const int64_t word = k % kQ4Group / 8 * kPanelColumns + n % kPanelColumns;
    return PairQ4(k, n) + kQ4ScaleBytes + k / kQ4Group % 2 * kQ4GroupBytes + word * 4 + k % 4;
  }
  int8_t* ScaleQ4(int64_t k, int64_t n) const {
    const int64_t scale = k / kQ4Group % 2 * kPanelColumns + n % kPanelColumns;
    return reinterpret_cast<int8_t*>(PairQ4(k, n)) + scale;
  }
  void PackFloats(const HostMatrix& w, bool transpose);
  void PackQ8(const HostMatrix& w, bool transpose, PageArena* arena);
  void PackQ4(const HostMatrix& w, bool transpose, PageArena* arena);

  int64_t panel_bytes_;
  std::shared_ptr<uint8_t[]> data_;
  std::shared_ptr<float[]> scales_;
  std::shared_ptr<int32_t[]> biases_;
};

inline const PackedMatrix& Packed(const Matrix& w) { return static_cast<const PackedMatrix&>(w); }

}  // namespace polysketch::cpu
