// A weight matrix of the reference backend: plain row-major float32, holding the values that the
// storage type can hold.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace polysketch::reference {

class ReferenceMatrix final : public Matrix {
 public:
  ReferenceMatrix(int64_t in, int64_t out, DataType type)
      : Matrix(in, out, type), values_(static_cast<size_t>(in * out)) {}

  float at(int64_t i, int64_t o) const { return values_[i * out() + o]; }
  float& at(int64_t i, int64_t o) { return values_[i * out() + o]; }
  const float* row(int64_t i) const { return values_.data() + i * out(); }

 private:
  std::vector<float> values_;  // [in, out]
};

// Converts every element of w to `type` (nearest even), as PackMatrix says.
std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose, DataType type);

// The matrix as this backend made it.
const ReferenceMatrix& Cast(const Matrix& matrix);

}  // namespace polysketch::reference
