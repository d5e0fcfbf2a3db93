#include "kernels/cuda/matrix.h"

#include <algorithm>
#include <vector>

#include "base/half.h"
#include "kernels/host_matrix.h"

namespace polysketch::cuda {
namespace {

// Returns the matrix as [padded_in][padded_out] elements of T, converted from float32.
template <typename T, typename Convert>
std::vector<uint8_t> Rows(const CudaMatrix& matrix, const HostMatrix& w, bool transpose,
                          const Convert& convert) {
  std::vector<uint8_t> bytes(matrix.padded_in() * matrix.padded_out() * sizeof(T));
  auto* rows = reinterpret_cast<T*>(bytes.data());
  for (int64_t i = 0; i < matrix.in(); ++i) {
    for (int64_t o = 0; o < matrix.out(); ++o) {
      rows[i * matrix.padded_out() + o] = convert(ReadPacked(w, transpose, i, o));
    }
  }
  return bytes;
}

// Stores element [i, o] of an 8-bit or a 4-bit matrix.
void PutByte(const CudaMatrix& matrix, int64_t i, int64_t o, int8_t q, uint8_t* bytes) {
  bytes[(i / 4 * matrix.padded_out() + o) * 4 + i % 4] = static_cast<uint8_t>(q);
}
void PutHalfByte(const CudaMatrix& matrix, int64_t i, int64_t o, int8_t q, uint8_t* bytes) {
  const int64_t word = i / kQ4Group * 4 + i % 16 / 4;
  uint8_t& byte = bytes[(word * matrix.padded_out() + o) * 4 + i % 4];
  byte = static_cast<uint8_t>(byte | (q + 8) << (i % kQ4Group < 16 ? 0 : 4));
}

// The largest integer of a scale of a group with which the sum of all groups, each of 32 products of
// at most 8 * 127, fits 32 bits.
float GroupScaleLimit(int64_t in) {
  const int64_t fits = INT32_MAX / (kQ4Group * 8 * 127 * Q4Groups(in));
  return std::min(kQuantMax, static_cast<float>(fits));
}

template <typename T>
void Upload(Device* device, const std::vector<T>& host, DeviceArray<T>* array) {
  *array = DeviceArray<T>(device, host.size());
  device->CopyIn(array->data(), host.data(), host.size() * sizeof(T));
}

}  // namespace

CudaMatrix::CudaMatrix(Device* device, const HostMatrix& w, bool transpose, DataType type)
    : Matrix(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, type) {
  std::vector<uint8_t> host;
  std::vector<float> scales(IsQuantized(this->type()) ? out() : 0);
  switch (this->type()) {
    case DataType::kF32:
      host = Rows<float>(*this, w, transpose, [](float x) { return x; });
      break;
    case DataType::kBf16:
      host = Rows<uint16_t>(*this, w, transpose, [](float x) { return FloatToBf16(x); });
      break;
    case DataType::kF16:
      host = Rows<uint16_t>(*this, w, transpose, [](float x) { return FloatToF16(x); });
      break;
    case DataType::kQ8: {
      std::vector<float> column(in());
      std::vector<int8_t> q(in());
      host.resize(padded_in() * padded_out());
      for (int64_t o = 0; o < out(); ++o) {
        scales[o] = QuantizeColumnQ8(w, transpose, in(), o, column.data(), q.data());
        for (int64_t i = 0; i < in(); ++i) PutByte(*this, i, o, q[i], host.data());
      }
      break;
    }
    case DataType::kQ4: {
      std::vector<int8_t> q(in()), of_column(Q4Groups(in()));
      std::vector<int8_t> of_groups(padded_in() / kQ4Group * padded_out());
      host.resize(padded_in() * padded_out() / 2);
      for (int64_t o = 0; o < out(); ++o) {
        scales[o] = QuantizeColumnQ4(w, transpose, in(), o, GroupScaleLimit(in()), q.data(),
                                     of_column.data());
        for (int64_t i = 0; i < in(); ++i) PutHalfByte(*this, i, o, q[i], host.data());
        for (int64_t g = 0; g < Q4Groups(in()); ++g) {
          of_groups[g * padded_out() + o] = of_column[g];
        }
      }
      Upload(device, of_groups, &group_scales_);
      break;
    }
  }
  if (!scales.empty()) Upload(device, scales, &scales_);
  Upload(device, host, &data_);
}

}  // namespace polysketch::cuda
