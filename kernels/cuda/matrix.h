// A weight matrix [in, out] on the device, row-major. 16-bit matrices are padded with zeros to
// whole tiles of the tensor core product: rows to 32, columns to 64.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/matrix.h"

namespace polysketch::cuda {

class CudaMatrix final : public Matrix {
 public:
  CudaMatrix(Device* device, const HostMatrix& w, bool transpose, DataType type);

  bool half() const { return type() == DataType::kBf16 || type() == DataType::kF16; }
  int64_t padded_in() const { return half() ? (in() + 31) / 32 * 32 : in(); }
  int64_t padded_out() const { return half() ? (out() + 63) / 64 * 64 : out(); }

  // Whether the dense library's products with matrices of this shape have the bits of ours. Set once
  // by the backend, before the matrix is used.
  bool library_has_our_bits() const { return library_has_our_bits_; }
  void set_library_has_our_bits(bool same) { library_has_our_bits_ = same; }

  const void* data() const { return data_.data(); }
  const float* floats() const { return reinterpret_cast<const float*>(data_.data()); }
  const uint16_t* halves() const { return reinterpret_cast<const uint16_t*>(data_.data()); }
  const int8_t* bytes8() const { return reinterpret_cast<const int8_t*>(data_.data()); }
  // q8: the scale of each column, [out].
  const float* scales() const { return scales_.data(); }

 private:
  bool library_has_our_bits_ = false;
  DeviceArray<uint8_t> data_;
  DeviceArray<float> scales_;
};

inline const CudaMatrix& Cast(const Matrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace polysketch::cuda
