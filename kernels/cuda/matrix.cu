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
  uint8_t& byte = bytes[(i / 8 * matrix.padded_out() + o) * 4 + i % 4];
  byte = static_cast<uint8_t>(byte | (q & 0xf) << (i % 8 < 4 ? 0 : 4));
}

}  // namespace

CudaMatrix::CudaMatrix(Device* device, const HostMatrix& w, bool transpose, DataType type)
    : Matrix(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, type) {
  std::vector<uint8_t> host, scale_bytes;
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
      scale_bytes.resize(out() * sizeof(float));
      auto* scales = reinterpret_cast<float*>(scale_bytes.data());
      for (int64_t o = 0; o < out(); ++o) {
        scales[o] = QuantizeColumnQ8(w, transpose, in(), o, column.data(), q.data());
        for (int64_t i = 0; i < in(); ++i) PutByte(*this, i, o, q[i], host.data());
      }
      break;
    }
    case DataType::kQ4: {
      host.resize(padded_in() * padded_out() / 2);
      scale_bytes.resize(Q4Groups(in()) * padded_out() * sizeof(uint16_t));
      auto* scales = reinterpret_cast<uint16_t*>(scale_bytes.data());
      for (int64_t o = 0; o < out(); ++o) {
        for (int64_t first = 0; first < in(); first += kQ4Group) {
          const int64_t count = std::min(kQ4Group, in() - first);
          int8_t q[kQ4Group];
          scales[first / kQ4Group * padded_out() + o] =
              QuantizeColumnGroupQ4(w, transpose, first, count, o, q);
          for (int64_t i = 0; i < count; ++i) {
            PutHalfByte(*this, first + i, o, q[i], host.data());
          }
        }
      }
      break;
    }
  }
  if (!scale_bytes.empty()) {
    scales_ = DeviceArray<uint8_t>(device, scale_bytes.size());
    device->CopyIn(scales_.data(), scale_bytes.data(), scale_bytes.size());
  }
  data_ = DeviceArray<uint8_t>(device, host.size());
  device->CopyIn(data_.data(), host.data(), host.size());
}

}  // namespace polysketch::cuda
