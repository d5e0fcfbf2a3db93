// Weights as the cpu backend keeps them: panels of 32 output columns, so that one row of a panel is
// one or two cache lines and a product streams a panel front to back. Columns behind `out` are 0.
//   f32, f16  [ceil(out / 32)][in][32]
//   bf16      [ceil(out / 32)][ceil(in / 2)][32][2]: two neighbours along `in` in one 32-bit word,
//             what dot products of bf16 pairs take; a shift and a mask widen them, without a
//             lane-crossing instruction
//   q8        [ceil(out / 32)][ceil(in / 4)][32][4]: four neighbours along `in` in one 32-bit word,
//             what byte dot products (VNNI) and byte tiles (AMX) take; one scale and one sum of
//             integers for each column
//   q4        [ceil(out / 32)][groups of 32] of: 32 bf16 scales, then [4][32][4], where byte j of a
//             word of row i holds elements 8 i + j (lower half) and 8 i + 4 + j (upper half) of the
//             group, each plus 8
#pragma once

#include <cstdint>
#include <memory>

#include "base/page_arena.h"
#include "kernels/backend.h"
#include "kernels/quantize.h"

namespace polysketch::cpu {

inline constexpr int kPanelColumns = 32;
// Of a group of a q4 panel: its scales, and all of it.
inline constexpr int64_t kQ4ScaleBytes = 2 * kPanelColumns;
inline constexpr int64_t kQ4GroupBytes = kQ4ScaleBytes + kQ4Group / 2 * kPanelColumns;

class PackedMatrix final : public Matrix {
 public:
  // w [in, out] row-major, or [out, in] when transposed.
  PackedMatrix(const HostMatrix& w, bool transpose, DataType type, PageArena* arena);

  int64_t panels() const { return (out() + kPanelColumns - 1) / kPanelColumns; }
  const float* panel_f32(int64_t p) const {
    return reinterpret_cast<const float*>(data_.get()) + p * in() * kPanelColumns;
  }
  // f16: 32 columns in order.
  const uint16_t* panel_f16(int64_t p) const {
    return reinterpret_cast<const uint16_t*>(data_.get()) + p * in() * kPanelColumns;
  }
  // bf16: words of two, 32 a row.
  const uint32_t* panel_bf16(int64_t p) const {
    return reinterpret_cast<const uint32_t*>(data_.get()) + p * depth2() * kPanelColumns;
  }
  // Rows of a bf16 panel.
  int64_t depth2() const { return (in() + 1) / 2; }
  // q8: words of four bytes, 32 a row.
  const int8_t* panel_q8(int64_t p) const {
    return reinterpret_cast<const int8_t*>(data_.get()) + p * depth4() * kPanelColumns * 4;
  }
  // Rows of a q8 panel.
  int64_t depth4() const { return (in() + 3) / 4; }
  // q4: groups of kQ4GroupBytes; scales, then 4 rows of 32 words of four bytes.
  const uint8_t* panel_q4(int64_t p) const { return data_.get() + p * groups() * kQ4GroupBytes; }
  int64_t groups() const { return Q4Groups(in()); }
  // q8, of every column (padded to whole panels): its scale; 128 times the sum of its integers,
  // what the bias of unsigned activations adds.
  const float* scales() const { return scales_.get(); }
  const int32_t* biases() const { return biases_.get(); }
  // Element [k, n] as float32.
  float At(int64_t k, int64_t n) const;

 private:
  void Put(int64_t k, int64_t n, float value);
  void PackQ8(const HostMatrix& w, bool transpose, PageArena* arena);
  void PackQ4(const HostMatrix& w, bool transpose, PageArena* arena);
  int64_t IndexBf16(int64_t k, int64_t n) const {
    return ((n / kPanelColumns * depth2() + k / 2) * kPanelColumns + n % kPanelColumns) * 2 + k % 2;
  }
  int64_t IndexQ8(int64_t k, int64_t n) const {
    return ((n / kPanelColumns * depth4() + k / 4) * kPanelColumns + n % kPanelColumns) * 4 + k % 4;
  }

  // Where the group of element [k, n] begins.
  int64_t GroupQ4(int64_t k, int64_t n) const {
    return (n / kPanelColumns * groups() + k / kQ4Group) * kQ4GroupBytes;
  }
  // Byte of element [k, n].
  int64_t IndexQ4(int64_t k, int64_t n) const {
    const int64_t row = k % kQ4Group / 8;
    return GroupQ4(k, n) + kQ4ScaleBytes + (row * kPanelColumns + n % kPanelColumns) * 4 + k % 4;
  }
  uint16_t* ScaleQ4(int64_t k, int64_t n) const {
    return reinterpret_cast<uint16_t*>(data_.get() + GroupQ4(k, n)) + n % kPanelColumns;
  }

  std::shared_ptr<uint8_t[]> data_;
  std::shared_ptr<float[]> scales_;
  std::shared_ptr<int32_t[]> biases_;
};

}  // namespace polysketch::cpu
