// The learned sketch of many rows for training: SketchManyKernel on bf16 rows and float32 weights. A
// row has the bits that it has in serving. What it keeps of a row is the result of each level.
#pragma once

#include "kernels/cuda/learned_sketch_many.cuh"

namespace polysketch::cuda {

struct LevelParameters {
  const float *scale, *bias;  // [in]
  const float *up, *down;     // [8 r][in], [r][8 r]
};
struct SketchParameters {
  LevelParameters level[2][2];  // [branch][level]
};

// Rows row0 to row0 + 15 of x [rows][WIDTH] as C tiles (LoadRows).
template <int WIDTH>
__device__ __forceinline__ void LoadHalfRows(const Bf16* x, int64_t row0, int64_t rows,
                                             float (&tile)[WIDTH / 8][4]) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row0 + g + 8 * half;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; ++n) {
      const uint32_t pair =
          row < rows ? *reinterpret_cast<const uint32_t*>(x + row * WIDTH + 8 * n + 2 * t) : 0;
      tile[n][2 * half] = WidenBf16(static_cast<Bf16>(pair));
      tile[n][2 * half + 1] = WidenBf16(static_cast<Bf16>(pair >> 16));
    }
  }
}

// Stores what LoadHalfRows loads, times `factor`.
template <int WIDTH>
__device__ __forceinline__ void StoreHalfRows(const float (&tile)[WIDTH / 8][4], float factor,
                                              int64_t row0, int64_t rows, Bf16* to) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row0 + g + 8 * half;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + row * WIDTH + 8 * n + 2 * t) =
          PackBf16(factor * tile[n][2 * half], factor * tile[n][2 * half + 1]);
    }
  }
}

// Scale and bias times kGeluIn, [2][IN] (LoadNorms).
template <int IN>
__device__ __forceinline__ void LoadNorm(LevelParameters from, int threads, float* to) {
  for (int i = threadIdx.x; i < IN; i += threads) {
    to[i] = kGeluIn * from.scale[i];
    to[IN + i] = kGeluIn * from.bias[i];
  }
}

// The weights of a level, rounded, as its chunks (learned_sketch_parts.cuh). Neighbouring threads read
// neighbouring floats.
template <int IN, int R>
__device__ __forceinline__ void RoundLevel(LevelParameters from, int threads, uint16_t* to) {
  constexpr int kHidden = 8 * R, kElements = (IN + R) * kChunk;
  for (int i = threadIdx.x; i < kHidden / 2 * IN; i += threads) {
    const int row = i % IN, hidden = i / IN * 2, column = hidden % kChunk;
    uint16_t* at = to + hidden / kChunk * kElements + (Swizzle<kChunk>(row) ^ column / 8 * 8);
    *reinterpret_cast<uint32_t*>(at + column % 8) =
        PackBf16(from.up[hidden * IN + row], from.up[(hidden + 1) * IN + row]);
  }
  for (int i = threadIdx.x; i < R / 2 * kHidden; i += threads) {
    const int hidden = i % kHidden, column = i / kHidden * 2;
    uint16_t* at = to + hidden / kChunk * kElements + IN * kChunk +
                   (Swizzle<R>(hidden % kChunk) ^ column / 8 * 8);
    *reinterpret_cast<uint32_t*>(at + column % 8) =
        PackBf16(from.down[column * kHidden + hidden], from.down[(column + 1) * kHidden + hidden]);
  }
}

// All chunks are in memory.
template <int D, int R>
struct RoundedChunks {
  const uint16_t* memory;
  __device__ const uint16_t* Next(int branch, int level, int chunk) const {
    return memory + SketchLayout<D, R>::Chunk(branch, level, chunk);
  }
  __device__ void Done() const {}
};

// Stores the results of a branch's levels in kept [level][branch][rows][R], if it is not null.
template <int T, int R>
struct KeptResults {
  Bf16* kept;
  int64_t row0, rows;
  int branch;
  __device__ __forceinline__ void operator()(int level, const float (&values)[T][R / 8][4]) const {
    if (kept == nullptr) return;
    Bf16* to = kept + (2 * level + branch) * rows * R;
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      StoreHalfRows<R>(values[tile], kGeluOut, row0 + 16 * tile, rows, to);
    }
  }
};

template <int D, int R>
__global__ void __launch_bounds__(SketchMany<D, R>::kThreads, 1)
    SketchRows(SketchParameters net, const Bf16* x, int64_t rows, Bf16* out, Bf16* kept) {
  using Many = SketchMany<D, R>;
  using Layout = SketchLayout<D, R>;
  constexpr int T = Many::kTiles;
  auto* norms = SharedMemory<float>();
  auto* weights = reinterpret_cast<uint16_t*>(norms + Layout::kNorms);
#pragma unroll
  for (int branch = 0; branch < 2; ++branch) {
    LoadNorm<D>(net.level[branch][0], Many::kThreads, norms + Layout::Norm(branch, 0));
    LoadNorm<R>(net.level[branch][1], Many::kThreads, norms + Layout::Norm(branch, 1));
    RoundLevel<D, R>(net.level[branch][0], Many::kThreads, weights + Layout::Chunk(branch, 0, 0));
    RoundLevel<R, R>(net.level[branch][1], Many::kThreads, weights + Layout::Chunk(branch, 1, 0));
  }
  __syncthreads();
  RoundedChunks<D, R> chunks{weights};

  const int64_t step = static_cast<int64_t>(gridDim.x) * Many::kWarps * Many::kRows;
  int64_t row0 =
      (blockIdx.x + static_cast<int64_t>(gridDim.x) * (threadIdx.x / kWarpSize)) * Many::kRows;
  for (; row0 < rows; row0 += step) {
    uint32_t a[2][T][D / 16][4];
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      float input[D / 8][4];
      LoadHalfRows<D>(x, row0 + 16 * tile, rows, input);
      Standardise<D>(kFirstEpsilon, input);
#pragma unroll
      for (int branch = 0; branch < 2; ++branch) {
        Scale<D, true>(input, norms + Layout::Norm(branch, 0), a[branch][tile]);
      }
    }
    float first[T][R / 8][4], second[T][R / 8][4];
    RunBranch<T, D, R, true>(a[0], 0, norms, &chunks, KeptResults<T, R>{kept, row0, rows, 0},
                             first);
    RunBranch<T, D, R, true>(a[1], 1, norms, &chunks, KeptResults<T, R>{kept, row0, rows, 1},
                             second);
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      float joined[R / 8][4];
#pragma unroll
      for (int i = 0; i < R / 2; ++i) {
        joined[i / 4][i % 4] = Join<R>(first[tile][i / 4][i % 4], second[tile][i / 4][i % 4]);
      }
      StoreHalfRows<R>(joined, 1.0f, row0 + 16 * tile, rows, out);
    }
  }
}

}  // namespace polysketch::cuda
