// gelu in its tanh form: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
#pragma once

#include <cuda_runtime.h>

namespace polysketch::cuda {

// The argument of the tanh.
__device__ __forceinline__ float GeluArgument(float x) {
  return 0.7978845608028654f * fmaf(0.044715f * x * x, x, x);
}
__device__ __forceinline__ float Gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(GeluArgument(x)));
}

}  // namespace polysketch::cuda
