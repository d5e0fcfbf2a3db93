// A weight matrix [in, out] on the device, padded with zeros to what its product reads at a time.
// float32 and 16 bits: row-major; 16-bit matrices have whole tiles of the tensor core product, rows
// to 32 and columns to 64. 8 and 4 bits: words [rows of words][padded_out], of 4 rows of 8 bits each,
// or of 8 rows of 4 bits each; rows to 64, columns to 16. Byte i of an 8-bit word is row i. Of the
// four words of a group of 32 rows in 4 bits, byte i of word j has row 4 j + i in its lower half and
// row 16 + 4 j + i in its upper half, both plus 8.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/matrix.h"

namespace polysketch::cuda {

constexpr int kQuantColumns = 16, kQuantDepth = 64;  // what quantised matrices are padded to

class CudaMatrix final : public Matrix {
 public:
  CudaMatrix(Device* device, const HostMatrix& w, bool transpose, DataType type);

  bool half() const { return type() == DataType::kBf16 || type() == DataType::kF16; }
  int64_t padded_in() const {
    const int64_t whole = half() ? 32 : IsQuantized(type()) ? kQuantDepth : 1;
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
  // Quantised: the scale of each column, [out]. Of 4 bits the unit of its groups' scales, which are
  // integers: [padded_in / 32][padded_out], small enough that a sum of all groups fits 32 bits.
  const float* column_scales() const { return scales_.data(); }
  const int8_t* group_scales() const { return group_scales_.data(); }

 private:
  bool library_has_our_bits_ = false;
  DeviceArray<uint8_t> data_;
  DeviceArray<float> scales_;
  DeviceArray<int8_t> group_scales_;
};

inline const CudaMatrix& Cast(const Matrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace polysketch::cuda
