#include "kernels/cuda/matrix.h"

#include <cstring>
#include <vector>

#include "base/check.h"
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

// This backend has no 4-bit products and stores 4-bit weights in 8 bits.
DataType StoredType(DataType type) { return type == DataType::kQ4 ? DataType::kQ8 : type; }

}  // namespace

CudaMatrix::CudaMatrix(Device* device, const HostMatrix& w, bool transpose, DataType type)
    : Matrix(transpose ? w.cols : w.rows, transpose ? w.rows : w.cols, StoredType(type)) {
  std::vector<uint8_t> host;
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
      std::vector<float> scales(out()), column(in());
      std::vector<int8_t> q(in());
      host.resize(padded_in() * padded_out());
      for (int64_t o = 0; o < out(); ++o) {
        scales[o] = QuantizeColumnQ8(w, transpose, in(), o, column.data(), q.data());
        for (int64_t i = 0; i < in(); ++i) {
          host[i * padded_out() + o] = static_cast<uint8_t>(q[i]);
        }
      }
      scales_ = DeviceArray<float>(device, scales.size());
      device->CopyIn(scales_.data(), scales.data(), scales.size() * sizeof(float));
      break;
    }
    case DataType::kQ4:
      PS_CHECK(false) << "stored as q8";
  }
  data_ = DeviceArray<uint8_t>(device, host.size());
  device->CopyIn(data_.data(), host.data(), host.size());
}

}  // namespace polysketch::cuda
