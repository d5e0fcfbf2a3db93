// A weight matrix of the reference backend: row-major float32 values, rounded to the storage type;
// for q8 and q4 the integers, with a scale for each.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matrix.h"

namespace polysketch::reference {

class ReferenceMatrix final : public Matrix {
 public:
  ReferenceMatrix(int64_t in, int64_t out, DataType type)
      : Matrix(in, out, type),
        values_(static_cast<size_t>(in * out)),
        scales_(IsQuantized(type) ? static_cast<size_t>(in * out) : 0) {}

  float at(int64_t i, int64_t o) const { return values_[i * out() + o]; }
  float& at(int64_t i, int64_t o) { return values_[i * out() + o]; }
  const float* row(int64_t i) const { return values_.data() + i * out(); }
  // The weight itself, whatever the format.
  float value(int64_t i, int64_t o) const {
    return IsQuantized(type()) ? at(i, o) * scale(i, o) : at(i, o);
  }
  // q8 and q4: what the integer at [i, o] is multiplied by.
  float scale(int64_t i, int64_t o) const { return scales_[i * out() + o]; }
  float& scale(int64_t i, int64_t o) { return scales_[i * out() + o]; }

 private:
  std::vector<float> values_;  // [in, out]
  std::vector<float> scales_;  // [in, out]; q8 and q4 only
};

// The matrix as ReferenceBackend::PackMatrix made it.
const ReferenceMatrix& Cast(const Matrix& matrix);

}  // namespace polysketch::reference
