// The learned sketch of few rows, as in decoding: the shortest chain of steps. A thread block takes
// 16 rows. Each warp has one branch, 64 hidden columns of it (a chunk) and 8 columns of its
// results; hidden values and results pass between warps through shared memory. Sums of a product
// have the order of learned_sketch_many.cuh, so rows have the same bits.
#pragma once

#include "kernels/cuda/learned_sketch_parts.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

template <int D, int R>
struct SketchFew {
  using Layout = SketchLayout<D, R>;
  static constexpr int kRows = 16;
  static constexpr int kParts = R / 8;  // warps of a branch
  static_assert(kParts == Layout::kChunks);
  static constexpr int kThreads = 2 * kParts * kWarpSize;
  // Rows in shared memory, with padding against bank conflicts.
  static constexpr int kHiddenRow = 8 * R + 8, kResultRow = R + 8;
  static constexpr int kHidden = 16 * kHiddenRow, kResults = 16 * kResultRow;  // of a branch

  static constexpr int64_t kShared = (Layout::kNorms + 2 * kResults) * sizeof(float) +
                                     2 * (Layout::kBranch + kHidden) * sizeof(uint16_t);
};

// What a warp of the kernel works on.
template <int D, int R>
struct FewWarp {
  int branch, part;
  const uint16_t* weights;  // of the branch
  uint16_t* hidden;         // [16][kHiddenRow] of the branch
  float* results;           // [16][kResultRow] of the branch
};

// Stores this warp's 64 columns of gelu(a up), rounded.
template <int IN, bool kBf16, int D, int R>
__device__ __forceinline__ void StoreHidden(const FewWarp<D, R>& warp,
                                            const uint32_t (&a)[1][IN / 16][4],
                                            const uint16_t* chunk) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  float sums[kChunk / 16][1][2][4];
#pragma unroll
  for (int i = 0; i < kChunk / 16; ++i) Up<1, IN, kBf16>(a, chunk, 16 * i, sums[i]);
  uint16_t* to = warp.hidden + g * SketchFew<D, R>::kHiddenRow + warp.part * kChunk + 2 * t;
#pragma unroll
  for (int i = 0; i < kChunk / 16; ++i) {
    uint32_t h[4];
    Activate<kBf16>(sums[i][0], h);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<uint32_t*>(to + j % 2 * 8 * SketchFew<D, R>::kHiddenRow + 16 * i +
                                   j / 2 * 8) = h[j];
    }
  }
}

// This warp's 8 columns of hidden down, a C tile. down: that of chunk 0; next: elements from one
// chunk to the next.
template <bool kBf16, int D, int R>
__device__ __forceinline__ void MultiplyDown(const FewWarp<D, R>& warp, const uint16_t* down,
                                             int next, float (&out)[4]) {
  const int lane = threadIdx.x % kWarpSize;
  const uint16_t* rows = warp.hidden + lane % 16 * SketchFew<D, R>::kHiddenRow + lane / 16 * 8;
  const uint16_t* columns = down + (Swizzle<R>(lane) ^ 8 * warp.part);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = 0;
#pragma unroll
  for (int k = 0; k < 8 * R; k += 32) {
    uint32_t a[4], b[4];
    LoadMatrix4T(b, columns + k / kChunk * next + k % kChunk * R);
    LoadMatrix4(a, rows + k);
    MmaHalf<kBf16>(out, a, b[0], b[1]);
    LoadMatrix4(a, rows + k + 16);
    MmaHalf<kBf16>(out, a, b[2], b[3]);
  }
}

// One level of 16 rows. Barriers: hidden values of all warps are there; that they have been read is
// what the caller's next barrier says.
template <int LEVEL, bool kBf16, int D, int R>
__device__ __forceinline__ void RunPart(const FewWarp<D, R>& warp,
                                        const uint32_t (&a)[1][(LEVEL == 0 ? D : R) / 16][4],
                                        float (&out)[4]) {
  using Layout = SketchLayout<D, R>;
  constexpr int IN = LEVEL == 0 ? D : R;
  constexpr int kNext = LEVEL == 0 ? Layout::kFirst : Layout::kSecond;
  const uint16_t* first = warp.weights + Layout::Chunk(0, LEVEL, 0);
  StoreHidden<IN, kBf16>(warp, a, first + warp.part * kNext);
  if (!PS_PLANTED(SKETCH_HIDDEN_BARRIER)) __syncthreads();
  MultiplyDown<kBf16>(warp, first + IN * kChunk, kNext, out);
}

template <int D, int R>
__device__ __forceinline__ void StoreResults(const FewWarp<D, R>& warp, const float (&out)[4]) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  constexpr int kRow = SketchFew<D, R>::kResultRow;
  float* to = warp.results + g * kRow + 8 * warp.part + 2 * t;
  StorePair(to, out[0], out[1]);
  StorePair(to + 8 * kRow, out[2], out[3]);
}

// The rows of a batch: x [count][D], and where their sketches are stored.
template <int D, int R>
struct BatchRows {
  static constexpr int64_t kShared = 0;
  const float* x;
  int64_t count;
  SketchOutput out;

  __device__ __forceinline__ void Load(int64_t row0, int, uint8_t*, float (&tile)[D / 8][4]) const {
    LoadRows<D>(x, row0, count, tile);
  }
  __device__ __forceinline__ void Store(int64_t row0, int row, int, uint8_t*, int column,
                                        float first, float second) const {
    out.Store((row0 + row) * R + column, first, second);
  }
};

// Rows: BatchRows, or StepRows (learned_sketch_step.cuh). Load and Store get the first row of the
// thread block's tile, the number of the tile in the thread block, and Rows::kShared bytes of shared
// memory.
template <int D, int R, bool kBf16, typename Rows>
__global__ void __launch_bounds__(SketchFew<D, R>::kThreads, 1)
    SketchFewKernel(NetworkWeights net, const Rows rows) {
  using Few = SketchFew<D, R>;
  using Layout = SketchLayout<D, R>;
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int branch = threadIdx.x / kWarpSize / Few::kParts;
  const int part = threadIdx.x / kWarpSize % Few::kParts;
  auto* norms = SharedMemory<float>();
  float* results = norms + Layout::kNorms;
  auto* weights =
      reinterpret_cast<uint16_t*>(results + 2 * Few::kResults) + branch * Layout::kBranch;
  uint16_t* hidden = weights + (2 - branch) * Layout::kBranch + branch * Few::kHidden;
  const FewWarp<D, R> warp{branch, part, weights, hidden, results + branch * Few::kResults};
  uint8_t* of_rows = SharedMemory<uint8_t>() + Few::kShared;

  int64_t row0 = static_cast<int64_t>(blockIdx.x) * Few::kRows;
  LoadChunk<D, R>(net.level[branch][0], part, lane, kWarpSize, weights + Layout::Chunk(0, 0, part));
  CommitCopies();
  LoadChunk<R, R>(net.level[branch][1], part, lane, kWarpSize, weights + Layout::Chunk(0, 1, part));
  CommitCopies();
  LoadNorms<D, R>(net, Few::kThreads, norms);
  AfterEarlierKernels();
  float input[D / 8][4];
  rows.Load(row0, 0, of_rows, input);
  WaitCopies<1>();  // up of the first level: of this warp alone; down: before the next barrier
  __syncthreads();

  const int64_t step = static_cast<int64_t>(gridDim.x) * Few::kRows;
  for (int number = 0; row0 < rows.count; row0 += step, ++number) {
    uint32_t a[1][D / 16][4];
    Standardise<D>(kFirstEpsilon, input);
    Scale<D, kBf16>(input, norms + Layout::Norm(branch, 0), a[0]);
    rows.Load(row0 + step, number + 1, of_rows, input);
    float sums[4];
    RunPart<0, kBf16>(warp, a, sums);
    StoreResults(warp, sums);
    WaitCopies<0>();
    __syncthreads();

    float middle[R / 8][4];
    uint32_t b[1][R / 16][4];
#pragma unroll
    for (int i = 0; i < R / 4; ++i) {
      const float2 pair =
          LoadPair(warp.results + (g + i % 2 * 8) * Few::kResultRow + i / 2 * 8 + 2 * t);
      middle[i / 2][i % 2 * 2] = pair.x;
      middle[i / 2][i % 2 * 2 + 1] = pair.y;
    }
    Standardise<R>(kSecondEpsilon, middle);
    Scale<R, kBf16>(middle, norms + Layout::Norm(branch, 1), b[0]);
    RunPart<1, kBf16>(warp, b, sums);
    if (branch == 1) StoreResults(warp, sums);
    __syncthreads();
    if (branch == 1) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half, column = 8 * part + 2 * t;
      if (row0 + row >= rows.count) continue;
      const float2 second = LoadPair(results + Few::kResults + row * Few::kResultRow + column);
      rows.Store(row0, row, number, of_rows, column, Join<R>(sums[2 * half], second.x),
                 Join<R>(sums[2 * half + 1], second.y));
    }
  }
}

}  // namespace polysketch::cuda
