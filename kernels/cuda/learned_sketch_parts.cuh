// What the fused kernels of the learned sketch share (learned_sketch_many.cuh and
// learned_sketch_few.cuh): the layout of weights in shared memory, and each step of a row. A step
// has one order of operations, so that every kernel gives a row the same bits: sums of a product
// run over its k-steps of 16 in order, with one accumulator.
//
// A chunk of a level is 64 hidden columns: up [in][64], then down [64][r], as 16-bit floats. Within
// eight rows groups of 16 bytes change places (Swizzle), so that ldmatrix has no bank conflicts and
// no memory is spent on padding.
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {

constexpr int kChunk = 64;

struct LevelWeights {
  const float *scale, *bias;  // [in]
  const uint16_t *up, *down;  // [in][up_row], [8 r][down_row]
  int up_row, down_row;
};
struct NetworkWeights {
  LevelWeights level[2][2];  // [branch][level]
};

// Sizes for networks of D inputs and R outputs. Chunks are counted over hidden columns, then
// levels, then branches.
template <int D, int R>
struct SketchLayout {
  static constexpr int kChunks = 8 * R / kChunk;                             // of a level
  static constexpr int kFirst = (D + R) * kChunk, kSecond = 2 * R * kChunk;  // elements of a chunk
  static constexpr int kLargest = kFirst > kSecond ? kFirst : kSecond;
  static constexpr int kBranch = kChunks * (kFirst + kSecond);
  static constexpr int kNorms = 4 * (D + R);  // floats: scale and bias of each branch and level

  static constexpr __device__ int Chunk(int branch, int level, int chunk) {
    return branch * kBranch + level * kChunks * kFirst + chunk * (level == 0 ? kFirst : kSecond);
  }
  static constexpr __device__ int Norm(int branch, int level) {
    return 2 * (branch * (D + R) + level * D);
  }
};

// The place of the first 8 elements of a row among rows of `kColumns` elements. Those of group c (8
// elements each) are at Swizzle ^ 8 c.
template <int kColumns>
__device__ __forceinline__ int Swizzle(int row) {
  constexpr int kShift = kColumns == 64 ? 0 : kColumns == 32 ? 1 : 2;
  return row * kColumns + (row >> kShift) % (kColumns / 8) * 8;
}

// Starts the copy of one chunk by `threads` threads.
template <int IN, int R>
__device__ __forceinline__ void LoadChunk(const LevelWeights& weights, int chunk, int thread,
                                          int threads, uint16_t* to) {
  for (int i = thread; i < IN * kChunk / 8; i += threads) {
    const int row = i / (kChunk / 8), column = i % (kChunk / 8) * 8;
    CopyAsync16(to + (Swizzle<kChunk>(row) ^ column),
                weights.up + row * weights.up_row + chunk * kChunk + column, true);
  }
  uint16_t* down = to + IN * kChunk;
  for (int i = thread; i < kChunk * R / 8; i += threads) {
    const int row = i / (R / 8), column = i % (R / 8) * 8;
    CopyAsync16(down + (Swizzle<R>(row) ^ column),
                weights.down + (chunk * kChunk + row) * weights.down_row + column, true);
  }
}

// gelu with one multiplication less: with s = kGeluIn x, where kGeluIn^3 = 0.044715 sqrt(2 / pi),
// the argument of its tanh is s (s^2 + kGeluShift), and gelu(x) = kGeluOut (s + s tanh). kGeluIn is
// applied with the norms, kGeluOut by the step after the next product: Standardise or Join.
constexpr float kGeluIn = 0.32920349f;
constexpr float kGeluShift = 2.4236820f;  // sqrt(2 / pi) / kGeluIn
constexpr float kGeluOut = 1.5188174f;    // 1 / (2 kGeluIn)

// Of the layer norms. The second one's input is the network's / kGeluOut.
constexpr float kFirstEpsilon = 1e-5f;
constexpr float kSecondEpsilon = 1e-5f / (kGeluOut * kGeluOut);

// Stores scales and biases times kGeluIn.
template <int D, int R>
__device__ __forceinline__ void LoadNorms(const NetworkWeights& net, int threads, float* norms) {
  for (int i = threadIdx.x; i < D + R; i += threads) {
    const int level = i < D ? 0 : 1, column = i < D ? i : i - D, width = i < D ? D : R;
    for (int branch = 0; branch < 2; ++branch) {
      float* to = norms + SketchLayout<D, R>::Norm(branch, level) + column;
      to[0] = kGeluIn * net.level[branch][level].scale[column];
      to[width] = kGeluIn * net.level[branch][level].bias[column];
    }
  }
}

// Where sketches [rows][R] are stored: floats, or rounded to bf16.
struct SketchOutput {
  float* floats = nullptr;
  uint16_t* bf16 = nullptr;
  __device__ __forceinline__ void Store(int64_t at, float x, float y) const {
    if (bf16 == nullptr) {
      *reinterpret_cast<float2*>(floats + at) = make_float2(x, y);
    } else {
      *reinterpret_cast<uint32_t*>(bf16 + at) = PackBf16(x, y);
    }
  }
};

__device__ __forceinline__ float2 LoadPair(const float* x) {
  return *reinterpret_cast<const float2*>(x);
}
__device__ __forceinline__ void StorePair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}

// Rows row0 to row0 + 15 of x [rows][D] as C tiles: x[n] has columns 8n to 8n + 7. Rows from `rows`
// on are zeros.
template <int D>
__device__ __forceinline__ void LoadRows(const float* x, int64_t row0, int64_t rows,
                                         float (&tile)[D / 8][4]) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row0 + g + 8 * half;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float2 pair =
          row < rows ? LoadPair(x + row * D + 8 * n + 2 * t) : make_float2(0.0f, 0.0f);
      tile[n][2 * half] = pair.x;
      tile[n][2 * half + 1] = pair.y;
    }
  }
}

__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(kFullWarp, value, 1);
  return value + __shfl_xor_sync(kFullWarp, value, 2);
}

// The layer norm without scale and bias, in place. Returns 1 / sigma of rows g and g + 8.
template <int IN>
__device__ __forceinline__ float2 Standardise(float epsilon, float (&x)[IN / 8][4]) {
  float inverses[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) sum += x[n][2 * half] + x[n][2 * half + 1];
    const float mean = QuadSum(sum) / IN;
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        x[n][i] -= mean;
        squares = fmaf(x[n][i], x[n][i], squares);
      }
    }
    const float inverse = rsqrtf(QuadSum(squares) / IN + epsilon);
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) {
      x[n][2 * half] *= inverse;
      x[n][2 * half + 1] *= inverse;
    }
    inverses[half] = inverse;
  }
  return make_float2(inverses[0], inverses[1]);
}

// a: x scaled, rounded, as A fragments. norm: scale [IN], bias [IN] in shared memory.
template <int IN, bool kBf16>
__device__ __forceinline__ void Scale(const float (&x)[IN / 8][4], const float* norm,
                                      uint32_t (&a)[IN / 16][4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < IN / 8; ++n) {
    const float2 scale = LoadPair(norm + 8 * n + 2 * t);
    const float2 bias = LoadPair(norm + IN + 8 * n + 2 * t);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[n / 2][n % 2 * 2 + half] = PackHalf<kBf16>(fmaf(x[n][2 * half], scale.x, bias.x),
                                                   fmaf(x[n][2 * half + 1], scale.y, bias.y));
    }
  }
}

// gelu(s / kGeluIn) / kGeluOut.
__device__ __forceinline__ float ScaledGelu(float s) {
  return fmaf(s, FastTanh(s * fmaf(s, s, kGeluShift)), s);
}

// sums = a up for the 16 hidden columns from `hidden` of a chunk. T row tiles share the weights.
template <int T, int IN, bool kBf16>
__device__ __forceinline__ void Up(const uint32_t (&a)[T][IN / 16][4], const uint16_t* chunk,
                                   int hidden, float (&sums)[T][2][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const uint16_t* up = chunk + ((Swizzle<kChunk>(lane % 16) ^ lane / 16 * 8) ^ hidden);
#pragma unroll
  for (int tile = 0; tile < T; ++tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[tile][i / 4][i % 4] = 0;
  }
#pragma unroll
  for (int k = 0; k < IN / 16; ++k) {
    uint32_t b[4];
    LoadMatrix4T(b, up + 16 * k * kChunk);
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      MmaHalf<kBf16>(sums[tile][0], a[tile][k], b[0], b[1]);
      MmaHalf<kBf16>(sums[tile][1], a[tile][k], b[2], b[3]);
    }
  }
}

// h: the gelu of sums, rounded, as an A fragment.
template <bool kBf16>
__device__ __forceinline__ void Activate(const float (&sums)[2][4], uint32_t (&h)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    h[i] =
        PackHalf<kBf16>(ScaledGelu(sums[i / 2][i % 2 * 2]), ScaledGelu(sums[i / 2][i % 2 * 2 + 1]));
  }
}

// out += h down for the 16 hidden rows from `hidden` of a chunk.
template <int T, int R, bool kBf16>
__device__ __forceinline__ void Down(const uint32_t (&h)[T][4], const uint16_t* down, int hidden,
                                     float (&out)[T][R / 8][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const int first = Swizzle<R>(lane % 16) ^ lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < R / 8; n += 2) {
    uint32_t b[4];
    LoadMatrix4T(b, down + hidden * R + (first ^ 8 * n));
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      MmaHalf<kBf16>(out[tile][n], h[tile], b[0], b[1]);
      MmaHalf<kBf16>(out[tile][n + 1], h[tile], b[2], b[3]);
    }
  }
}

// sqrt(r) tanh(x y / sqrt(r)) of branches' results times kGeluOut.
template <int R>
__device__ __forceinline__ float Join(float x, float y) {
  const float root = sqrtf(static_cast<float>(R));
  return root * FastTanh(x * y * (kGeluOut * kGeluOut / root));
}

}  // namespace polysketch::cuda
