// The decay gate (docs/attention.md): the sums G of the log decays of a block's tokens, and the
// factors that they make of weights and of keys. Kernels take NoDecay, which does nothing, or what
// has the factors.
//
// FastExp computes the factors of weights and of keys, which are rounded to bf16 next; expf those of
// far parts and of states, which are not.
#pragma once

#include "kernels/cuda/attention_shape.cuh"

namespace polysketch::cuda {

struct NoDecay {
  __device__ __forceinline__ float Weight(float weight, int, int, int) const { return weight; }
};

// e^(G_t - G_s) for the weights of a warp's 16 * M rows (attention_parts.cuh) and the keys of a part.
template <int M>
struct NearDecay {
  const float* keys;  // G of the part's keys, in shared memory
  float rows[M][2];   // G of rows g and g + 8 of each tile

  // row_sums: the `count` G of the warp's rows, of which each has one (step 1), or all the first (step 0).
  __device__ __forceinline__ NearDecay(const float* row_sums, int count, const float* key_sums,
                                       int step = 1)
      : keys(key_sums) {
    const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + 8 * half + g;
        rows[m][half] = row * step < count ? row_sums[row * step] : 0.0f;
      }
    }
  }
  __device__ __forceinline__ float Weight(float weight, int m, int half, int key) const {
    return weight * FastExp(rows[m][half] - keys[key]);
  }
};

// The elements of a bf16 pair times a factor each, rounded to bf16.
__device__ __forceinline__ uint32_t ScalePair(uint32_t pair, float low, float high) {
  return PackBf16(WidenBf16(static_cast<Bf16>(pair)) * low,
                  WidenBf16(static_cast<Bf16>(pair >> 16)) * high);
}

// e^(G_b - G_s) for the keys of a fold, b the last token of the block.
struct KeyDecay {
  const float* sums;  // G of the part's tokens, in shared memory
  float last;         // G_b
  // A pair of elements of tokens `token` and token + 1.
  __device__ __forceinline__ uint32_t Pair(uint32_t pair, int token) const {
    return ScalePair(pair, FastExp(last - sums[token]), FastExp(last - sums[token + 1]));
  }
};

// Starts the copy of G of `size` tokens to shared memory; those from `valid` on become zero.
__device__ __forceinline__ void CopyDecaySums(const float* from, int valid, float* to, int size,
                                              int thread, int threads) {
  for (int i = thread; i < size; i += threads) {
    CopyAsync4(to + i, i < valid ? from + i : from, i < valid);
  }
}

// sums [count] of tokens of one block: one chain of float32 additions in token order. log_decay: of
// tokens `stride` apart; before: the sum of the token before them. By a thread block, with shared
// memory of a float for each thread.
__device__ __forceinline__ void AddLogDecays(const float* log_decay, int64_t stride, int count,
                                             float before, float* sums) {
  auto* chain = SharedMemory<float>();
  const int thread = threadIdx.x, threads = blockDim.x;
  float sum = before;
  for (int first = 0; first < count; first += threads) {
    const int of_step = min(threads, count - first);
    if (thread < of_step) chain[thread] = log_decay[(first + thread) * stride];
    __syncthreads();
    for (int i = 0; thread == 0 && i < of_step; ++i) chain[i] = sum += chain[i];
    __syncthreads();
    if (thread < of_step) sums[first + thread] = chain[thread];
  }
}

// Stores G of a job's tokens. The slices of the grid divide the blocks. Shared memory: a float for
// each thread.
__device__ __forceinline__ void StoreDecaySums(const AttentionShape& shape, const StoreJob& job,
                                               int head) {
  const int b = shape.block, end = job.first + job.count;
  float* sums = Array<float>(job.to.decay_sums, job.table, job.place, shape.layer, head);
  const float* log_decay = shape.log_decay + static_cast<int64_t>(job.row) * shape.kv_heads + head;
  for (int block = job.first / b + static_cast<int>(blockIdx.z); block * b < end;
       block += static_cast<int>(gridDim.z)) {
    const int begin = block * b < job.first ? job.first : block * b;
    const float before = begin > block * b ? sums[begin - 1] : 0.0f;  // of an earlier step
    AddLogDecays(log_decay + static_cast<int64_t>(begin - job.first) * shape.kv_heads,
                 shape.kv_heads, min(end, (block + 1) * b) - begin, before, sums + begin);
  }
}

// Stores G_b of the block that a job folds, for ScanStates.
__device__ __forceinline__ void StoreBlockDecay(const AttentionShape& shape, const FoldJob& job,
                                                int head, const float* sums, float* decays) {
  if (blockIdx.z == 0 && threadIdx.x == 0) {
    decays[job.partial * shape.kv_heads + head] = sums[shape.block - 1];
  }
}

// StoreDecaySums of a job of one token of a block buffer.
__device__ __forceinline__ void StoreDecaySum(const StoreJob& job, int layer, int head,
                                              float log_decay) {
  float* sums = At<float>(job.to.decay_sums, layer, head) + job.first;
  sums[0] = (job.first > 0 ? sums[-1] : 0.0f) + log_decay;
}

}  // namespace polysketch::cuda
