// 16-bit products by a library. cublas.cu implements NewDenseLibrary; no_library.cc does in builds
// without cuBLASLt, where the kernels of matmul.cu compute these products.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {

class DenseLibrary {
 public:
  virtual ~DenseLibrary() = default;
  // out [rows, out] = x w (+ bias) (+ out if `accumulate`), x [rows, padded_in] in the format of w.
  // Returns false, and does nothing, for a shape of w that it does not support with any number of
  // rows and the same bits of a row in each. The first call for a shape finds out, also in a
  // rehearsal; else a rehearsed call does nothing.
  virtual bool Product(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
                       bool accumulate, float* out) = 0;
};

// Returns null if no library is linked, or if POLYSKETCH_CUDA_DENSE=portable.
std::unique_ptr<DenseLibrary> NewDenseLibrary(Device* device);

}  // namespace polysketch::cuda
