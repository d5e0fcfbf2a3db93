// 16-bit products by a library, where one is linked: cublas.cu, with its twin no_library.cc, which
// leaves them to the kernels of matmul.cu.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {

class DenseLibrary {
 public:
  virtual ~DenseLibrary() = default;
  // out [rows, out] = x w (+ bias) (+ out), x [rows, padded_in] in the format of w; false, and
  // nothing done, for a shape that it does not take, whatever the number of rows.
  virtual bool Product(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
                       bool accumulate, float* out) = 0;
};

// Null when there is none, or POLYSKETCH_CUDA_DENSE=portable asks for the kernels.
std::unique_ptr<DenseLibrary> NewDenseLibrary(Device* device);

}  // namespace polysketch::cuda
