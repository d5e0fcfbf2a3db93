// A weight matrix [in, out] on the device, padded with zeros to what its product reads at a time.
// float32 and 16 bits: row-major; 16-bit matrices have whole tiles of the tensor core product, rows
// to 32 and columns to 64. 8 and 4 bits: words [rows of words][padded_out], of 4 rows of 8 bits each,
// or of 8 rows of 4 bits each; rows to 16 and 32, columns to 16. Byte i of an 8-bit word is row i.
// Byte i of a 4-bit word has row i in its lower half and row 4 + i in its upper half, both signed.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/matrix.h"

namespace polysketch::cuda {

constexpr int kQuantColumns = 16;

class CudaMatrix final : public Matrix {
 public:
  CudaMatrix(Device* device, const HostMatrix& w, bool transpose, DataType type);

  bool half() const { return type() == DataType::kBf16 || type() == DataType::kF16; }
  int64_t padded_in() const {
    const int64_t whole = half() || type() == DataType::kQ4 ? 32 : type() == DataType::kQ8 ? 16 : 1;
    return (in() + whole - 1) / whole * whole;
  }
  int64_t padded_out() const {
    const int64_t whole = half() ? 64 : IsQuantized(type()) ? kQuantColumns : 1;
    return (out() + whole - 1) / whole * whole;
  }

  // Whether the dense library's products with matrices of this shape have the bits of ours. Set once
  // by the backend, before the matrix is used.
  bool library_has_our_bits() const { return library_has_our_bits_; }
  void set_library_has_our_bits(bool same) { library_has_our_bits_ = same; }

  const void* data() const { return data_.data(); }
  const float* floats() const { return reinterpret_cast<const float*>(data_.data()); }
  const uint16_t* halves() const { return reinterpret_cast<const uint16_t*>(data_.data()); }
  const uint32_t* words() const { return reinterpret_cast<const uint32_t*>(data_.data()); }
  // 8 bits: the scale of each column, [out]. 4 bits: bf16, of each group of 32 rows, [groups][padded_out].
  const float* column_scales() const { return reinterpret_cast<const float*>(scales_.data()); }
  const uint16_t* group_scales() const { return reinterpret_cast<const uint16_t*>(scales_.data()); }

 private:
  bool library_has_our_bits_ = false;
  DeviceArray<uint8_t> data_;
  DeviceArray<uint8_t> scales_;
};

inline const CudaMatrix& Cast(const Matrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace polysketch::cuda
