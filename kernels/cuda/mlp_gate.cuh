// The gates of an MLP.
#pragma once

#include "kernels/cuda/gelu.cuh"
#include "kernels/matrix.h"

namespace polysketch::cuda {

__device__ __forceinline__ float Silu(float x) { return x / (1.0f + expf(-x)); }

// u times the gate of g. Not of kUngatedGelu.
__device__ __forceinline__ float Gated(GateKind gate, float u, float g) {
  return u * (gate == GateKind::kSilu ? Silu(g) : Gelu(g));
}

}  // namespace polysketch::cuda
