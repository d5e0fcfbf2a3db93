// Reads a matrix of a checkpoint element by element, for the packing code of all backends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "kernels/matrix.h"
#include "kernels/quantize.h"

namespace polysketch {

// Checkpoints guarantee no alignment.
template <typename T>
inline T ReadUnaligned(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

// The integer of element [row, col] of a quantised matrix. kQ4: byte row j < 16 of group g holds
// elements 32 g + j (lower half) and 32 g + 16 + j (upper half), each plus 8.
inline int ReadInteger(const HostMatrix& w, int64_t row, int64_t col) {
  if (w.type == DataType::kQ8) return ReadUnaligned<int8_t>(w.data, row * w.cols + col);
  const int64_t half = kQ4Group / 2, j = row % kQ4Group;
  const int64_t byte_row = row / kQ4Group * half + j % half;
  const uint8_t pair = ReadUnaligned<uint8_t>(w.data, byte_row * w.cols + col);
  return (j < half ? pair & 0xf : pair >> 4) - 8;
}

// The scale of element [row, col] of a quantised matrix.
inline float ReadScale(const HostMatrix& w, int64_t row, int64_t col) {
  if (w.type == DataType::kQ8) return ReadUnaligned<float>(w.scales, w.scale_rows ? row : col);
  return Bf16ToFloat(ReadUnaligned<uint16_t>(w.scales, row / kQ4Group * w.cols + col));
}

// Element [row, col] of w as float32.
inline float ReadElement(const HostMatrix& w, int64_t row, int64_t col) {
  const int64_t index = row * w.cols + col;
  switch (w.type) {
    case DataType::kF32:
      return ReadUnaligned<float>(w.data, index);
    case DataType::kF16:
      return F16ToFloat(ReadUnaligned<uint16_t>(w.data, index));
    case DataType::kBf16:
      return Bf16ToFloat(ReadUnaligned<uint16_t>(w.data, index));
    case DataType::kQ8:
    case DataType::kQ4:
      break;
  }
  return static_cast<float>(ReadInteger(w, row, col)) * ReadScale(w, row, col);
}

// Element [k, n] of the matrix [in, out] that PackMatrix makes of w.
inline float ReadPacked(const HostMatrix& w, bool transpose, int64_t k, int64_t n) {
  return transpose ? ReadElement(w, n, k) : ReadElement(w, k, n);
}

// Whether PackMatrix to `type` keeps the integers of w.
inline bool KeepsIntegers(const HostMatrix& w, bool transpose, DataType type) {
  if (w.type != type) return false;
  return type == DataType::kQ8 ? w.scale_rows == transpose : type == DataType::kQ4 && !transpose;
}

// Column n of the q8 matrix that PackMatrix makes of w. Writes the integers to q [in] and returns
// the scale. column [in] is scratch memory.
inline float QuantizeColumnQ8(const HostMatrix& w, bool transpose, int64_t in, int64_t n,
                              float* column, int8_t* q) {
  if (KeepsIntegers(w, transpose, DataType::kQ8)) {
    for (int64_t k = 0; k < in; ++k) {
      q[k] = static_cast<int8_t>(transpose ? ReadInteger(w, n, k) : ReadInteger(w, k, n));
    }
    return transpose ? ReadScale(w, n, 0) : ReadScale(w, 0, n);
  }
  for (int64_t k = 0; k < in; ++k) column[k] = ReadPacked(w, transpose, k, n);
  const QuantScale scale = QuantScale::Of(LargestMagnitude(column, in, 1));
  for (int64_t k = 0; k < in; ++k) q[k] = Quantize(column[k], scale);
  return scale.scale;
}

// Elements [first, first + count), one group, of column n of the q4 matrix that PackMatrix makes of
// w. Writes the integers to q and returns the bits of the scale.
inline uint16_t QuantizeColumnGroupQ4(const HostMatrix& w, bool transpose, int64_t first,
                                      int64_t count, int64_t n, int8_t* q) {
  if (KeepsIntegers(w, transpose, DataType::kQ4)) {
    for (int64_t k = 0; k < count; ++k) q[k] = static_cast<int8_t>(ReadInteger(w, first + k, n));
    return FloatToBf16(ReadScale(w, first, n));
  }
  float values[kQ4Group];
  for (int64_t k = 0; k < count; ++k) values[k] = ReadPacked(w, transpose, first + k, n);
  return QuantizeGroupQ4(values, count, q);
}

// Column n of the q4 matrix that PackMatrix makes of w, for products that add scaled groups as
// integers: the scale of a group is an integer of at most `limit` <= 127 times a unit of the
// column, which is returned. Writes the elements' integers to q [in], those of the scales to scales
// [Q4Groups(in)].
inline float QuantizeColumnQ4(const HostMatrix& w, bool transpose, int64_t in, int64_t n,
                              float limit, int8_t* q, int8_t* scales) {
  std::vector<float> exact(static_cast<size_t>(Q4Groups(in)));
  for (int64_t first = 0; first < in; first += kQ4Group) {
    const int64_t count = std::min(kQ4Group, in - first);
    exact[first / kQ4Group] =
        Bf16ToFloat(QuantizeColumnGroupQ4(w, transpose, first, count, n, q + first));
  }
  const QuantScale unit = QuantScale::Of(LargestMagnitude(exact.data(), Q4Groups(in), 1), limit);
  for (int64_t g = 0; g < Q4Groups(in); ++g) scales[g] = Quantize(exact[g], unit);
  return unit.scale;
}

}  // namespace polysketch
