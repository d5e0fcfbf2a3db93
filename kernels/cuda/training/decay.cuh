// The decay gate in training: sums of the log decays, and their gradients.
#pragma once

#include "kernels/cuda/attention_decay.cuh"
#include "kernels/cuda/training/shape.cuh"

namespace polysketch::cuda {

constexpr int kDecayThreads = 256;

// G from the start of each block. log_decay: [batch * heads][tokens]. blockIdx: block, head.
__global__ void SumLogDecays(TrainingShape shape, const float* log_decay, float* sums) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * shape.attention.block;
  AddLogDecays(log_decay + shape.head() * shape.tokens + first, 1, shape.BlockTokens(blockIdx.x), 0,
               sums + shape.of_group() * shape.tokens + first);
}

// The gradients of the log decays: sums of terms (gradients.cuh) over tokens from the last one on.
// terms: [group][tokens]; gradients: [batch * heads][tokens]. blockIdx.y: head.
__global__ void __launch_bounds__(kDecayThreads)
    LogDecayGradients(TrainingShape shape, const float* terms, float* gradients) {
  auto* scratch = SharedMemory<float>();  // a sum of each warp
  const int thread = threadIdx.x, lane = thread % kWarpSize, warp = thread / kWarpSize;
  const int64_t of_group = shape.of_group() * shape.tokens;
  gradients += shape.head() * shape.tokens;
  float later = 0;  // the sum over the tokens after these
  for (int64_t end = shape.tokens; end > 0; end -= kDecayThreads) {
    const int64_t token = end - 1 - thread;
    float sum = token >= 0 ? terms[of_group + token] : 0.0f;
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float other = __shfl_sync(kFullWarp, sum, lane >= distance ? lane - distance : lane);
      if (lane >= distance) sum += other;
    }
    if (lane == kWarpSize - 1) scratch[warp] = sum;
    __syncthreads();
    float before = later;
    for (int w = 0; w < kDecayThreads / kWarpSize; ++w) {
      if (w == warp && token >= 0) gradients[token] = before + sum;
      before += scratch[w];
    }
    later = before;
    __syncthreads();  // all sums are read
  }
}

}  // namespace polysketch::cuda
