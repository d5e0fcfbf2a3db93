#include "kernels/cpu/packed_matrix.h"

#include <algorithm>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/host_matrix.h"
#include "kernels/quantize.h"

namespace polysketch::cpu {
PackedMatrix::PackedMatrix(const HostMatrix& w, bool transpose, DataType type, PageArena* arena)
    : Matrix(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, type) {
  PS_CHECK(!IsQuantized(type) || in() <= kQuantLongest) << in();
  if (type == DataType::kQ8) {
    PackQ8(w, transpose, arena);
    return;
  }
  if (type == DataType::kQ4) {
    PackQ4(w, transpose, arena);
    return;
  }
  const int64_t depth = type == DataType::kBf16 ? 2 * depth2() : in();
  data_ = arena->New<uint8_t>(
      static_cast<size_t>(panels() * kPanelColumns * depth * DataTypeBytes(type)));
  // Source order, so that a mapped file is read front to back.
  for (int64_t row = 0; row < w.rows; ++row) {
    for (int64_t col = 0; col < w.cols; ++col) {
      const float value = ReadElement(w, row, col);
      if (transpose) {
        Put(col, row, value);
      } else {
        Put(row, col, value);
      }
    }
  }
}

void PackedMatrix::PackQ8(const HostMatrix& w, bool transpose, PageArena* arena) {
  const int64_t columns = panels() * kPanelColumns;
  data_ = arena->New<uint8_t>(static_cast<size_t>(columns * depth4() * 4));
  scales_ = arena->New<float>(static_cast<size_t>(columns));
  biases_ = arena->New<int32_t>(static_cast<size_t>(columns));
  AlignedBuffer<float> column(static_cast<size_t>(in()));
  AlignedBuffer<int8_t> q(static_cast<size_t>(in()));
  for (int64_t n = 0; n < out(); ++n) {
    scales_[n] = QuantizeColumnQ8(w, transpose, in(), n, column.data(), q.data());
    int32_t sum = 0;
    for (int64_t k = 0; k < in(); ++k) {
      data_[IndexQ8(k, n)] = static_cast<uint8_t>(q[k]);
      sum += q[k];
    }
    biases_[n] = 128 * sum;
  }
}

void PackedMatrix::PackQ4(const HostMatrix& w, bool transpose, PageArena* arena) {
  data_ = arena->New<uint8_t>(static_cast<size_t>(panels() * groups() * kQ4GroupBytes));
  // Elements behind `in` meet activations of zero: any integer will do.
  for (int64_t n = 0; n < out(); ++n) {
    for (int64_t g = 0; g < groups(); ++g) {
      const int64_t first = g * kQ4Group, count = std::min(kQ4Group, in() - first);
      int8_t q[kQ4Group];
      *ScaleQ4(first, n) = QuantizeColumnGroupQ4(w, transpose, first, count, n, q);
      for (int64_t k = 0; k < count; ++k) {
        const int shift = k % 8 < 4 ? 0 : 4;
        data_[IndexQ4(first + k, n)] |= static_cast<uint8_t>((q[k] + 8) << shift);
      }
    }
  }
}

void PackedMatrix::Put(int64_t k, int64_t n, float value) {
  const int64_t row = (n / kPanelColumns * in() + k) * kPanelColumns;
  const int64_t column = n % kPanelColumns;
  switch (type()) {
    case DataType::kF32:
      reinterpret_cast<float*>(data_.get())[row + column] = value;
      return;
    case DataType::kF16:
      reinterpret_cast<uint16_t*>(data_.get())[row + column] = FloatToF16(value);
      return;
    case DataType::kBf16:
      reinterpret_cast<uint16_t*>(data_.get())[IndexBf16(k, n)] = FloatToBf16(value);
      return;
    case DataType::kQ8:
    case DataType::kQ4:
      PS_CHECK(false) << "packed by columns";
  }
}

float PackedMatrix::At(int64_t k, int64_t n) const {
  const int64_t row = (n / kPanelColumns * in() + k) * kPanelColumns;
  const int64_t column = n % kPanelColumns;
  switch (type()) {
    case DataType::kF32:
      return reinterpret_cast<const float*>(data_.get())[row + column];
    case DataType::kF16:
      return F16ToFloat(reinterpret_cast<const uint16_t*>(data_.get())[row + column]);
    case DataType::kBf16:
      return Bf16ToFloat(reinterpret_cast<const uint16_t*>(data_.get())[IndexBf16(k, n)]);
    case DataType::kQ8:
      return static_cast<float>(reinterpret_cast<const int8_t*>(data_.get())[IndexQ8(k, n)]) *
             scales_[n];
    case DataType::kQ4: {
      const uint8_t pair = data_[IndexQ4(k, n)];
      const int q = (k % 8 < 4 ? pair & 0xf : pair >> 4) - 8;
      return static_cast<float>(q) * Bf16ToFloat(*ScaleQ4(k, n));
    }
  }
  return 0;
}

}  // namespace polysketch::cpu
