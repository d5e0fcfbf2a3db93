#pragma once

#include <cuda_runtime.h>

namespace polysketch::cuda {

// min(x, 0) - log(1 + e^-|x|): neither part overflows, and both have the same sign.
__device__ __forceinline__ float LogSigmoid(float x) {
  return fminf(x, 0.0f) - log1pf(expf(-fabsf(x)));
}

}  // namespace polysketch::cuda
