#include "kernels/cpu/packed_matrix.h"

#include <algorithm>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/host_matrix.h"

namespace polysketch::cpu {

namespace {

int64_t Panels(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }

}  // namespace

int64_t PackedMatrix::PanelBytes(int64_t in, DataType type) {
  if (type == DataType::kQ4) return (Q4Groups(in) + 1) / 2 * kQ4PairBytes;
  const int64_t neighbours = Neighbours(type), depth = (in + neighbours - 1) / neighbours;
  return depth * neighbours * kPanelColumns * DataTypeBytes(type);
}

int64_t PackedMatrix::PackedBytes(int64_t in, int64_t out, DataType type) {
  const int64_t per_column = type == DataType::kQ8 ? 8 : type == DataType::kQ4 ? 4 : 0;
  return Panels(out) * (PanelBytes(in, type) + kPanelColumns * per_column);
}

PackedMatrix::PackedMatrix(const HostMatrix& w, bool transpose, DataType type, PageArena* arena)
    : Matrix(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, type,
             PackedBytes(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, type)),
      panel_bytes_(PanelBytes(in(), type)) {
  PS_CHECK(!IsQuantized(type) || in() <= kQuantLongest) << in();
  data_ = arena->New<uint8_t>(static_cast<size_t>(panels() * panel_bytes()));
  if (type == DataType::kQ8) {
    PackQ8(w, transpose, arena);
  } else if (type == DataType::kQ4) {
    PackQ4(w, transpose, arena);
  } else {
    PackFloats(w, transpose);
  }
}

void PackedMatrix::PackFloats(const HostMatrix& w, bool transpose) {
  // In the order of the source, so that a mapped file is read front to back.
  for (int64_t row = 0; row < w.rows; ++row) {
    for (int64_t col = 0; col < w.cols; ++col) {
      const float value = ReadElement(w, row, col);
      const int64_t k = transpose ? col : row, n = transpose ? row : col;
      if (type() == DataType::kF32) {
        *element<float>(k, n) = value;
      } else {
        *element<uint16_t>(k, n) =
            type() == DataType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
      }
    }
  }
}

void PackedMatrix::PackQ8(const HostMatrix& w, bool transpose, PageArena* arena) {
  const auto columns = static_cast<size_t>(panels() * kPanelColumns);
  scales_ = arena->New<float>(columns);
  biases_ = arena->New<int32_t>(columns);
  AlignedBuffer<float> column(static_cast<size_t>(in()));
  AlignedBuffer<int8_t> q(static_cast<size_t>(in()));
  for (int64_t n = 0; n < out(); ++n) {
    scales_[n] = QuantizeColumnQ8(w, transpose, in(), n, column.data(), q.data());
    int32_t sum = 0;
    for (int64_t k = 0; k < in(); ++k) {
      *element<int8_t>(k, n) = q[k];
      sum += q[k];
    }
    biases_[n] = 128 * sum;
  }
}

void PackedMatrix::PackQ4(const HostMatrix& w, bool transpose, PageArena* arena) {
  scales_ = arena->New<float>(static_cast<size_t>(panels() * kPanelColumns));
  AlignedBuffer<int8_t> q(static_cast<size_t>(in())), scales(static_cast<size_t>(Q4Groups(in())));
  // Integers of elements from `in` on are arbitrary: their activations are zero.
  for (int64_t n = 0; n < out(); ++n) {
    scales_[n] = QuantizeColumnQ4(w, transpose, in(), n, kQuantMax, q.data(), scales.data());
    for (int64_t k = 0; k < in(); ++k) {
      *ByteQ4(k, n) |= static_cast<uint8_t>((q[k] + 8) << (k % 8 < 4 ? 0 : 4));
    }
    for (int64_t g = 0; g < Q4Groups(in()); ++g) *ScaleQ4(g * kQ4Group, n) = scales[g];
  }
}

void PackedMatrix::Column(int64_t n, float* out) const {
  const auto fill = [&](const auto& element) {
    for (int64_t k = 0; k < in(); ++k) out[k] = element(k);
  };
  switch (type()) {
    case DataType::kF32:
      return fill([&](int64_t k) { return *element<float>(k, n); });
    case DataType::kF16:
      return fill([&](int64_t k) { return F16ToFloat(*element<uint16_t>(k, n)); });
    case DataType::kBf16:
      return fill([&](int64_t k) { return Bf16ToFloat(*element<uint16_t>(k, n)); });
    case DataType::kQ8: {
      const int8_t* column = element<int8_t>(0, n);  // a word of 4 in each row of the panel
      return fill([&](int64_t k) {
        const int64_t word = k / 4 * kPanelColumns;
        return static_cast<float>(column[4 * word + k % 4]) * scales_[n];
      });
    }
    case DataType::kQ4:
      return fill([&](int64_t k) {
        const uint8_t byte = *ByteQ4(k, n);
        const int q = (k % 8 < 4 ? byte & 0xf : byte >> 4) - 8;
        return static_cast<float>(q * *ScaleQ4(k, n)) * scales_[n];
      });
  }
}

}  // namespace polysketch::cpu
