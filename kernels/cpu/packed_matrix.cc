#include "kernels/cpu/packed_matrix.h"

#include "base/check.h"
#include "base/half.h"
#include "kernels/host_matrix.h"
#include "kernels/quantize.h"

namespace polysketch::cpu {
PackedMatrix::PackedMatrix(const HostMatrix& w, bool transpose, DataType type)
    : Matrix(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, type) {
  const int64_t rows = type == DataType::kQ8 ? depth4() * 4 : in();
  data_ = AlignedBuffer<uint8_t>(
      static_cast<size_t>(panels() * kPanelColumns * rows * DataTypeBytes(type)));
  if (type == DataType::kQ8) {
    PackQ8(w, transpose);
    return;
  }
  // Source order, so that a mapped file is read front to back.
  for (int64_t row = 0; row < w.rows; ++row) {
    for (int64_t col = 0; col < w.cols; ++col) {
      const float value = ReadElement(w, row * w.cols + col);
      if (transpose) {
        Put(col, row, value);
      } else {
        Put(row, col, value);
      }
    }
  }
}

void PackedMatrix::PackQ8(const HostMatrix& w, bool transpose) {
  PS_CHECK(in() <= kQuantLongest) << in();
  scales_ = AlignedBuffer<float>(static_cast<size_t>(panels() * kPanelColumns));
  biases_ = AlignedBuffer<int32_t>(static_cast<size_t>(panels() * kPanelColumns));
  auto* q = reinterpret_cast<int8_t*>(data_.data());
  AlignedBuffer<float> column(static_cast<size_t>(in()));
  for (int64_t n = 0; n < out(); ++n) {
    for (int64_t k = 0; k < in(); ++k) {
      column[k] = ReadElement(w, transpose ? n * w.cols + k : k * w.cols + n);
    }
    const QuantScale scale = QuantScale::Of(LargestMagnitude(column.data(), in(), 1));
    int32_t sum = 0;
    for (int64_t k = 0; k < in(); ++k) {
      const int8_t value = Quantize(column[k], scale);
      q[IndexQ8(k, n)] = value;
      sum += value;
    }
    scales_[n] = scale.scale;
    biases_[n] = 128 * sum;
  }
}

void PackedMatrix::Put(int64_t k, int64_t n, float value) {
  const int64_t row = (n / kPanelColumns * in() + k) * kPanelColumns;
  const int64_t column = n % kPanelColumns;
  switch (type()) {
    case DataType::kF32:
      reinterpret_cast<float*>(data_.data())[row + column] = value;
      return;
    case DataType::kF16:
      reinterpret_cast<uint16_t*>(data_.data())[row + column] = FloatToF16(value);
      return;
    case DataType::kBf16: {
      // Little-endian: the lower half of word l is 16-bit element 2 l.
      const int64_t slot = 2 * (column % 16) + column / 16;
      reinterpret_cast<uint16_t*>(data_.data())[row + slot] = FloatToBf16(value);
      return;
    }
    case DataType::kQ8:
      PS_CHECK(false) << "q8 is packed by columns";
  }
}

float PackedMatrix::At(int64_t k, int64_t n) const {
  const int64_t row = (n / kPanelColumns * in() + k) * kPanelColumns;
  const int64_t column = n % kPanelColumns;
  switch (type()) {
    case DataType::kF32:
      return reinterpret_cast<const float*>(data_.data())[row + column];
    case DataType::kF16:
      return F16ToFloat(reinterpret_cast<const uint16_t*>(data_.data())[row + column]);
    case DataType::kBf16:
      return Bf16ToFloat(
          reinterpret_cast<const uint16_t*>(data_.data())[row + 2 * (column % 16) + column / 16]);
    case DataType::kQ8:
      return static_cast<float>(reinterpret_cast<const int8_t*>(data_.data())[IndexQ8(k, n)]) *
             scales_[n];
  }
  return 0;
}

}  // namespace polysketch::cpu
