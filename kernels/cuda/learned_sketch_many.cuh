// The learned sketch of many rows. A warp takes 16 or 32 rows through both branches without storing
// anything in between: the sums of one product are the operand of the next (ptx.cuh: elements 0 and
// 1 of two neighbouring C tiles are an A fragment). Thread blocks stay for the whole launch. Where
// all weights fit in shared memory, they are copied once and warps run on their own. Elsewhere two
// chunks are there at a time: one is copied while the other is used.
#pragma once

#include "kernels/cuda/learned_sketch_parts.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

template <int D, int R>
struct SketchMany {
  // Row tiles of a warp, which share the fragments of weights, as far as registers go.
  static constexpr int kTiles = D <= 64 && R <= 32 ? 2 : 1;
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kWarps = 12;
  static constexpr int kThreads = kWarps * kWarpSize;
  using Layout = SketchLayout<D, R>;
  static constexpr int64_t Shared(bool resident) {
    return (resident ? 2 * Layout::kBranch : 2 * Layout::kLargest) * sizeof(uint16_t) +
           Layout::kNorms * sizeof(float);
  }
};

// The chunks in order, for every pass over rows again. Next() returns the next one once it is
// copied; after Done() it may be overwritten.
template <int D, int R, bool kResident>
struct SketchChunks {
  using Layout = SketchLayout<D, R>;
  using Many = SketchMany<D, R>;
  static constexpr int kAll = 4 * Layout::kChunks;

  const NetworkWeights& net;
  uint16_t* memory;
  int index = 0;

  static __device__ void Load(const NetworkWeights& net, int i, uint16_t* to) {
    const int branch = i / (2 * Layout::kChunks), chunk = i % Layout::kChunks;
    if (i / Layout::kChunks % 2 == 0) {
      LoadChunk<D, R>(net.level[branch][0], chunk, threadIdx.x, Many::kThreads, to);
    } else {
      LoadChunk<R, R>(net.level[branch][1], chunk, threadIdx.x, Many::kThreads, to);
    }
  }

  __device__ void Begin() {
    if constexpr (kResident) {
      for (int i = 0; i < kAll; ++i) {
        Load(net, i,
             memory + Layout::Chunk(i / (2 * Layout::kChunks), i / Layout::kChunks % 2,
                                    i % Layout::kChunks));
      }
      CommitCopies();
      WaitCopies<0>();
    } else {
      Load(net, 0, memory);
      CommitCopies();
    }
    __syncthreads();
  }
  __device__ const uint16_t* Next(int branch, int level, int chunk) {
    if constexpr (kResident) return memory + Layout::Chunk(branch, level, chunk);
    Load(net, (index + 1) % kAll, memory + (index + 1) % 2 * Layout::kLargest);
    CommitCopies();
    WaitCopies<1>();
    if (!PS_PLANTED(SKETCH_CHUNK_BARRIER)) __syncthreads();
    return memory + index++ % 2 * Layout::kLargest;
  }
  __device__ void Done() {
    if constexpr (!kResident) {
      if (!PS_PLANTED(SKETCH_DONE_BARRIER)) __syncthreads();
    }
  }
};

// out = gelu(a up) down, in the scale of the parts.
template <int T, int IN, int R, bool kBf16, typename Chunks>
__device__ __forceinline__ void RunLevel(const uint32_t (&a)[T][IN / 16][4], int branch, int level,
                                         Chunks* chunks, float (&out)[T][R / 8][4]) {
#pragma unroll
  for (int tile = 0; tile < T; ++tile) {
#pragma unroll
    for (int i = 0; i < R / 2; ++i) out[tile][i / 4][i % 4] = 0;
  }
#pragma unroll 1
  for (int i = 0; i < 8 * R / kChunk; ++i) {
    const uint16_t* chunk = chunks->Next(branch, level, i);
    // The product of the next 16 columns keeps the tensor cores busy while these pass through gelu.
    float sums[2][T][2][4];
    Up<T, IN, kBf16>(a, chunk, 0, sums[0]);
#pragma unroll
    for (int hidden = 0; hidden < kChunk; hidden += 16) {
      const int now = hidden / 16 % 2;
      if (hidden + 16 < kChunk) Up<T, IN, kBf16>(a, chunk, hidden + 16, sums[1 - now]);
      uint32_t h[T][4];
#pragma unroll
      for (int tile = 0; tile < T; ++tile) Activate<kBf16>(sums[now][tile], h[tile]);
      Down<T, R, kBf16>(h, chunk + IN * kChunk, hidden, out);
    }
    chunks->Done();
  }
}

// One branch from its first operand on. keep(level, results) sees the results of each level.
template <int T, int D, int R, bool kBf16, typename Chunks, typename Keep>
__device__ __forceinline__ void RunBranch(const uint32_t (&a)[T][D / 16][4], int branch,
                                          const float* norms, Chunks* chunks, const Keep& keep,
                                          float (&out)[T][R / 8][4]) {
  RunLevel<T, D, R, kBf16>(a, branch, 0, chunks, out);
  keep(0, out);
  uint32_t middle[T][R / 16][4];
#pragma unroll
  for (int tile = 0; tile < T; ++tile) {
    Standardise<R>(kSecondEpsilon, out[tile]);
    Scale<R, kBf16>(out[tile], norms + SketchLayout<D, R>::Norm(branch, 1), middle[tile]);
  }
  RunLevel<T, R, R, kBf16>(middle, branch, 1, chunks, out);
  keep(1, out);
}

template <int D, int R, bool kBf16, bool kResident>
__global__ void __launch_bounds__(SketchMany<D, R>::kThreads, 1)
    SketchManyKernel(NetworkWeights net, const float* x, int64_t rows, SketchOutput out) {
  using Many = SketchMany<D, R>;
  using Layout = SketchLayout<D, R>;
  constexpr int T = Many::kTiles;
  auto* norms = SharedMemory<float>();
  LoadNorms<D, R>(net, Many::kThreads, norms);
  SketchChunks<D, R, kResident> chunks{net, reinterpret_cast<uint16_t*>(norms + Layout::kNorms)};
  chunks.Begin();
  AfterEarlierKernels();

  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int64_t units = (rows + Many::kRows - 1) / Many::kRows;
  // Neighbouring units go to different blocks, so that few of them fill all SMs.
  const int64_t own = blockIdx.x + static_cast<int64_t>(gridDim.x) * (threadIdx.x / kWarpSize);
  for (int64_t begin = 0; begin < units; begin += static_cast<int64_t>(gridDim.x) * Many::kWarps) {
    const int64_t row0 = (begin + own) * Many::kRows;
    if (kResident && row0 >= rows) return;  // no barrier follows
    uint32_t a[2][T][D / 16][4];
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      float input[D / 8][4];
      LoadRows<D>(x, row0 + 16 * tile, rows, input);
      Standardise<D>(kFirstEpsilon, input);
#pragma unroll
      for (int branch = 0; branch < 2; ++branch) {
        Scale<D, kBf16>(input, norms + Layout::Norm(branch, 0), a[branch][tile]);
      }
    }
    const auto keep_none = [](int, const float(&)[T][R / 8][4]) {};
    float first[T][R / 8][4], second[T][R / 8][4];
    RunBranch<T, D, R, kBf16>(a[0], 0, norms, &chunks, keep_none, first);
    RunBranch<T, D, R, kBf16>(a[1], 1, norms, &chunks, keep_none, second);
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = row0 + 16 * tile + g + 8 * half;
        if (row >= rows) continue;
#pragma unroll
        for (int n = 0; n < R / 8; ++n) {
          const float *p = first[tile][n] + 2 * half, *q = second[tile][n] + 2 * half;
          out.Store(row * R + 8 * n + 2 * t, Join<R>(p[0], q[0]), Join<R>(p[1], q[1]));
        }
      }
    }
  }
  WaitCopies<0>();
}

}  // namespace polysketch::cuda
