// 16-bit products by a library, where one is linked: cublas.cu, with its twin no_library.cc.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {

// out [rows, out] = x w (+ bias) (+ out), x [rows, padded_in] in the format of w; false when there
// is no library, or it has no algorithm for this shape.
bool DenseLibraryProduct(Device* device, const uint16_t* x, int64_t rows, const CudaMatrix& w,
                         const float* bias, bool accumulate, float* out);

}  // namespace polysketch::cuda
