// The backward pass of one level of one branch of the learned sketch: y = down gelu(up norm(x)).
//
// Warps divide the hidden columns. A warp keeps its slices of both matrices and of their gradients
// in registers for the whole launch. Of each tile of rows it computes its hidden values again,
// transposed, so that they and the gradients by their arguments (slopes) are operands of the products
// for the gradients of the weights as they stand. Slopes also go to shared memory, from where each
// warp computes the gradient by x of 16 rows.
//
// In the scale of learned_sketch_parts.cuh: with s the product of up and the scaled norm, h = s (1 +
// tanh), gelu is kGeluOut h. dv is the gradient by y times kGeluOut, so that dv h and dv down have
// the factor, and slopes are down^T dv dh/ds.
#pragma once

#include "kernels/cuda/planted.h"
#include "kernels/cuda/training/sketch_rows.cuh"

namespace polysketch::cuda {

template <int IN, int R>
struct LevelGradients {
  static constexpr int kHidden = 8 * R;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kSlices = kHidden / 16 / kWarps;  // of 16 hidden columns, of a warp
  static constexpr int kRows = 16 * kWarps;              // of a tile
  static_assert(kSlices * 16 * kWarps == kHidden);
  // Shared memory, in 16-bit elements: up [kHidden][IN], the scaled norms [kRows][IN], dv [kRows][R],
  // the slopes, of 64 rows each, [kRows / 64][kHidden][64].
  static constexpr int kUp = kHidden * IN, kNormed = kRows * IN, kOut = kRows * R;
  static constexpr int kSlopes = kHidden * kRows;
  // Floats: scale and bias [2][IN], and of each lane the gradients of the norm, [kWarps][IN / 8][32][4].
  static constexpr int kNormSums = kThreads * IN / 2;
  static constexpr int64_t kShared =
      (kUp + kNormed + kOut + kSlopes) * sizeof(uint16_t) + (2 * IN + kNormSums) * sizeof(float);
  // What a thread block adds up: up, down, scale, bias, shaped as the parameters.
  static constexpr int kFloats = kHidden * (IN + R) + 2 * IN;
};

// The rows of a level. With `own` and `other`, the results of this branch and of the other one, the
// level is the last, and `gradient` is that of the sketch; else `gradient` is that of the level's
// results. `add`: x_gradient already has the gradient through the other branch.
struct LevelRows {
  const Bf16* x;                       // [rows][IN]
  const Bf16 *gradient, *own, *other;  // [rows][R]
  Bf16* x_gradient;                    // [rows][IN]
  bool add;
};

// A warp's slices of the matrices as A fragments, and of their gradients as C tiles.
template <int IN, int R>
struct LevelSlices {
  static constexpr int kSlices = LevelGradients<IN, R>::kSlices;
  uint32_t up[kSlices][IN / 16][4];
  uint32_t down[kSlices][R / 16][4];  // transposed
  float up_sums[kSlices][IN / 8][4];
  float down_sums[kSlices][R / 8][4];  // transposed
};

// The hidden column of a lane's element `half` (rows g and g + 8 of a fragment).
template <int IN, int R>
__device__ __forceinline__ int HiddenColumn(int slice, int half) {
  const int warp = threadIdx.x / kWarpSize, g = threadIdx.x % kWarpSize / 4;
  return 16 * (warp * LevelGradients<IN, R>::kSlices + slice) + g + 8 * half;
}

template <int IN, int R>
__device__ __forceinline__ void LoadSlices(const LevelParameters& from, LevelSlices<IN, R>* to) {
  constexpr int kHidden = 8 * R;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < LevelSlices<IN, R>::kSlices; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int hidden = HiddenColumn<IN, R>(i, j % 2), first = 2 * t + j / 2 * 8;
#pragma unroll
      for (int k = 0; k < IN / 16; ++k) {
        const float* at = from.up + hidden * IN + 16 * k + first;
        to->up[i][k][j] = PackBf16(at[0], at[1]);
      }
#pragma unroll
      for (int k = 0; k < R / 16; ++k) {
        const float* at = from.down + (16 * k + first) * kHidden + hidden;
        to->down[i][k][j] = PackBf16(at[0], at[kHidden]);
      }
    }
#pragma unroll
    for (int j = 0; j < IN / 2; ++j) to->up_sums[i][j / 4][j % 4] = 0;
#pragma unroll
    for (int j = 0; j < R / 2; ++j) to->down_sums[i][j / 4][j % 4] = 0;
  }
}

// The gradient by the last level's results, from that of the sketch sqrt(r) tanh(own other / sqrt(r)).
template <int R>
__device__ __forceinline__ void ThroughJoin(const LevelRows& rows, int64_t row0, int64_t count,
                                            float (&gradient)[R / 8][4]) {
  float own[R / 8][4], other[R / 8][4];
  LoadHalfRows<R>(rows.own, row0, count, own);
  LoadHalfRows<R>(rows.other, row0, count, other);
  const float inverse_root = rsqrtf(static_cast<float>(R));
#pragma unroll
  for (int i = 0; i < R / 2; ++i) {
    const float y = other[i / 4][i % 4];
    const float tanh = FastTanh(own[i / 4][i % 4] * y * inverse_root);
    gradient[i / 4][i % 4] *= fmaf(-tanh, tanh, 1.0f) * y;
  }
}

// Stores 16 rows as pairs of bf16, times `factor`, in a swizzled array of shared memory.
template <int WIDTH>
__device__ __forceinline__ void StoreShared(const float (&tile)[WIDTH / 8][4], float factor,
                                            int first, uint16_t* to) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Swizzle<WIDTH>(first + g + 8 * half) + 2 * t;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + (row ^ 8 * n)) =
          PackBf16(factor * tile[n][2 * half], factor * tile[n][2 * half + 1]);
    }
  }
}

// h = s (1 + tanh(s (s^2 + kGeluShift))) and dh/ds.
__device__ __forceinline__ void GeluAndSlope(float s, float* h, float* slope) {
  const float cubic = fmaf(s, s, kGeluShift);
  const float tanh = FastTanh(s * cubic);
  *h = fmaf(s, tanh, s);
  *slope = fmaf(s * fmaf(-tanh, tanh, 1.0f), fmaf(3.0f, cubic, -2.0f * kGeluShift), 1.0f + tanh);
}

// The 16 rows from `row` of a tile: adds to the gradients of the warp's slices, and stores its slopes.
template <int IN, int R>
__device__ __forceinline__ void AddRows(const uint16_t* normed, const uint16_t* dv, int row,
                                        uint16_t* slopes, LevelSlices<IN, R>* slices) {
  constexpr int S = LevelSlices<IN, R>::kSlices;
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  // Places of ldmatrix: rows as columns of an operand, and rows as its rows.
  const int across = row + lane / 16 * 8 + lane % 8, across_column = lane / 8 % 2 * 8;
  const int along = row + lane % 16, along_column = lane / 16 * 8;
  float s[S][2][4] = {}, h[S][2][4] = {};
#pragma unroll
  for (int k = 0; k < IN / 16; ++k) {
    uint32_t b[4];
    LoadMatrix4(b, normed + (Swizzle<IN>(across) ^ (16 * k + across_column)));
#pragma unroll
    for (int i = 0; i < S; ++i) {
      MmaBf16(s[i][0], slices->up[i][k], b[0], b[1]);
      MmaBf16(s[i][1], slices->up[i][k], b[2], b[3]);
    }
  }
#pragma unroll
  for (int k = 0; k < R / 16; ++k) {
    uint32_t b[4];
    LoadMatrix4(b, dv + (Swizzle<R>(across) ^ (16 * k + across_column)));
#pragma unroll
    for (int i = 0; i < S; ++i) {
      MmaBf16(h[i][0], slices->down[i][k], b[0], b[1]);
      MmaBf16(h[i][1], slices->down[i][k], b[2], b[3]);
    }
  }
  uint32_t values[S][4], gradients[S][4];
#pragma unroll
  for (int i = 0; i < S; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float value[2], slope[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        GeluAndSlope(s[i][j / 2][j % 2 * 2 + e], &value[e], &slope[e]);
        slope[e] *= h[i][j / 2][j % 2 * 2 + e];
      }
      values[i][j] = PackBf16(value[0], value[1]);
      gradients[i][j] = PackBf16(slope[0], slope[1]);
      const int hidden = HiddenColumn<IN, R>(i, j % 2);
      uint16_t* to = slopes + row / 64 * 64 * 8 * R + 2 * t;
      *reinterpret_cast<uint32_t*>(to + (Swizzle<64>(hidden) ^ (row % 64 + j / 2 * 8))) =
          gradients[i][j];
    }
  }
#pragma unroll
  for (int n = 0; n < IN / 8; n += 2) {
    uint32_t b[4];
    LoadMatrix4T(b, normed + (Swizzle<IN>(along) ^ (8 * n + along_column)));
#pragma unroll
    for (int i = 0; i < S; ++i) {
      MmaBf16(slices->up_sums[i][n], gradients[i], b[0], b[1]);
      MmaBf16(slices->up_sums[i][n + 1], gradients[i], b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < R / 8; n += 2) {
    uint32_t b[4];
    LoadMatrix4T(b, dv + (Swizzle<R>(along) ^ (8 * n + along_column)));
#pragma unroll
    for (int i = 0; i < S; ++i) {
      MmaBf16(slices->down_sums[i][n], values[i], b[0], b[1]);
      MmaBf16(slices->down_sums[i][n + 1], values[i], b[2], b[3]);
    }
  }
}

// Of the 16 rows from `row` of a tile, the gradient by the scaled norm: slopes times up.
template <int IN, int R>
__device__ __forceinline__ void MultiplySlopes(const uint16_t* slopes, const uint16_t* up, int row,
                                               float (&out)[IN / 8][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const uint16_t* from = slopes + row / 64 * 64 * 8 * R;
  const int column = row % 64 + lane / 8 % 2 * 8;
#pragma unroll
  for (int i = 0; i < IN / 2; ++i) out[i / 4][i % 4] = 0;
#pragma unroll 4
  for (int k = 0; k < 8 * R; k += 16) {
    uint32_t a[4];
    LoadMatrix4T(a, from + (Swizzle<64>(k + lane / 16 * 8 + lane % 8) ^ column));
#pragma unroll
    for (int n = 0; n < IN / 8; n += 2) {
      uint32_t b[4];
      LoadMatrix4T(b, up + (Swizzle<IN>(k + lane % 16) ^ (8 * n + lane / 16 * 8)));
      MmaBf16(out[n], a, b[0], b[1]);
      MmaBf16(out[n + 1], a, b[2], b[3]);
    }
  }
}

// The gradient by x of 16 rows, in place of that by the scaled norm; x: the standardised rows, of which
// inverses has 1 / sigma. Adds to the norm's gradients at sums [IN / 8], 32 elements apart: of scale
// and of bias, two columns each.
template <int IN>
__device__ __forceinline__ void ThroughNorm(const float (&x)[IN / 8][4], float2 inverses,
                                            const float* scales, float (&gradient)[IN / 8][4],
                                            float4* sums) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < IN / 8; ++n) {
    const float* g = gradient[n];
    float4 sum = sums[n * kWarpSize];
    sum.x += fmaf(g[0], x[n][0], g[2] * x[n][2]);
    sum.y += fmaf(g[1], x[n][1], g[3] * x[n][3]);
    sum.z += g[0] + g[2];
    sum.w += g[1] + g[3];
    sums[n * kWarpSize] = sum;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0, along_x = 0;
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) {
      const float2 scale = LoadPair(scales + 8 * n + 2 * t);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& g = gradient[n][2 * half + e];
        g *= e == 0 ? scale.x : scale.y;
        sum += g;
        along_x = fmaf(g, x[n][2 * half + e], along_x);
      }
    }
    const float mean = QuadSum(sum) / IN, mean_along = QuadSum(along_x) / IN;
    const float inverse = half == 0 ? inverses.x : inverses.y;
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        gradient[n][i] = inverse * (fmaf(-mean_along, x[n][i], gradient[n][i]) - mean);
      }
    }
  }
}

// Stores what a thread block has added up.
template <int IN, int R>
__device__ __forceinline__ void StoreSums(const LevelSlices<IN, R>& slices, const float* norm_sums,
                                          float* to) {
  constexpr int kHidden = 8 * R;
  const int t = threadIdx.x % 4;
  float* down = to + kHidden * IN;
#pragma unroll
  for (int i = 0; i < LevelSlices<IN, R>::kSlices; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int hidden = HiddenColumn<IN, R>(i, half);
#pragma unroll
      for (int n = 0; n < IN / 8; ++n) {
        const float* sums = slices.up_sums[i][n] + 2 * half;
        StorePair(to + hidden * IN + 8 * n + 2 * t, sums[0], sums[1]);
      }
#pragma unroll
      for (int n = 0; n < R / 8; ++n) {
        const float* sums = slices.down_sums[i][n] + 2 * half;
        down[(8 * n + 2 * t) * kHidden + hidden] = sums[0];
        down[(8 * n + 2 * t + 1) * kHidden + hidden] = sums[1];
      }
    }
  }
  // Scale, then bias: the sums of all warps and of the rows of a fragment, in order.
  for (int i = threadIdx.x; i < 2 * IN; i += LevelGradients<IN, R>::kThreads) {
    const int column = i % IN, element = i / IN * 2 + column % 2;
    float sum = 0;
    for (int warp = 0; warp < LevelGradients<IN, R>::kWarps; ++warp) {
      for (int g = 0; g < 8; ++g) {
        const int lane = 4 * g + column % 8 / 2;
        sum += norm_sums[((warp * (IN / 8) + column / 8) * kWarpSize + lane) * 4 + element];
      }
    }
    down[R * kHidden + i] = kGeluIn * sum;
  }
}

// partials: [gridDim.x][kFloats]. Thread blocks take tiles in turn.
template <int IN, int R>
__global__ void __launch_bounds__(LevelGradients<IN, R>::kThreads, 1)
    SketchLevelGradients(LevelParameters level, LevelRows rows, int64_t count, float* partials) {
  using Sizes = LevelGradients<IN, R>;
  auto* up = SharedMemory<uint16_t>();
  uint16_t *normed = up + Sizes::kUp, *dv = normed + Sizes::kNormed, *slopes = dv + Sizes::kOut;
  auto* norm = reinterpret_cast<float*>(slopes + Sizes::kSlopes);
  float* norm_sums = norm + 2 * IN;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, own = 16 * warp;
  auto* own_sums = reinterpret_cast<float4*>(norm_sums) + warp * (IN / 8) * kWarpSize + lane;

  LoadNorm<IN>(level, Sizes::kThreads, norm);
  for (int i = threadIdx.x; i < Sizes::kUp / 2; i += Sizes::kThreads) {
    const int hidden = 2 * i / IN, column = 2 * i % IN;
    *reinterpret_cast<uint32_t*>(up + (Swizzle<IN>(hidden) ^ column / 8 * 8) + column % 8) =
        PackBf16(level.up[2 * i], level.up[2 * i + 1]);
  }
  LevelSlices<IN, R> slices;
  LoadSlices<IN, R>(level, &slices);
#pragma unroll
  for (int n = 0; n < IN / 8; ++n) own_sums[n * kWarpSize] = make_float4(0, 0, 0, 0);
  __syncthreads();

  const int64_t tiles = (count + Sizes::kRows - 1) / Sizes::kRows;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row0 = tile * Sizes::kRows + own;
    {
      float x[IN / 8][4], gradient[R / 8][4];
      uint32_t scaled[IN / 16][4];
      LoadHalfRows<IN>(rows.x, row0, count, x);
      Standardise<IN>(kFirstEpsilon, x);
      Scale<IN, true>(x, norm, scaled);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = Swizzle<IN>(own + lane / 4 + 8 * half) + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < IN / 8; ++n) {
          *reinterpret_cast<uint32_t*>(normed + (row ^ 8 * n)) = scaled[n / 2][n % 2 * 2 + half];
        }
      }
      LoadHalfRows<R>(rows.gradient, row0, count, gradient);
      if (rows.own != nullptr) ThroughJoin<R>(rows, row0, count, gradient);
      StoreShared<R>(gradient, kGeluOut, own, dv);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < Sizes::kRows; row += 16) {
      AddRows<IN, R>(normed, dv, row, slopes, &slices);
    }
    if (!PS_PLANTED(SKETCH_SLOPES_BARRIER)) __syncthreads();
    float x[IN / 8][4], gradient[IN / 8][4];
    MultiplySlopes<IN, R>(slopes, up, own, gradient);
    LoadHalfRows<IN>(rows.x, row0, count, x);
    const float2 inverses = Standardise<IN>(kFirstEpsilon, x);
    ThroughNorm<IN>(x, inverses, norm, gradient, own_sums);
    if (rows.add) {
      LoadHalfRows<IN>(rows.x_gradient, row0, count, x);
#pragma unroll
      for (int i = 0; i < IN / 2; ++i) gradient[i / 4][i % 4] += x[i / 4][i % 4];
    }
    StoreHalfRows<IN>(gradient, 1.0f, row0, count, rows.x_gradient);
  }
  __syncthreads();
  StoreSums<IN, R>(slices, norm_sums, partials + static_cast<int64_t>(blockIdx.x) * Sizes::kFloats);
}

// The gradients of a level's parameters, and the partial sums of thread blocks that they are.
struct LevelSums {
  const float* partials;  // [parts][floats]
  int floats, in;
  float *up, *down, *scale, *bias;
};
struct NetworkSums {
  LevelSums level[4];
};
constexpr int kSumThreads = 256;

// Adds up the partial sums of level blockIdx.y in their order.
template <int R>
__global__ void AddSketchGradients(NetworkSums sums, int parts) {
  const LevelSums& level = sums.level[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kSumThreads + static_cast<int>(threadIdx.x);
  if (i >= level.floats) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) {
    sum += level.partials[static_cast<int64_t>(part) * level.floats + i];
  }
  const int up = 8 * R * level.in, down = up + 8 * R * R, scale = down + level.in;
  if (i < up) {
    level.up[i] = sum;
  } else if (i < down) {
    level.down[i - up] = sum;
  } else if (i < scale) {
    level.scale[i - down] = sum;
  } else {
    level.bias[i - scale] = sum;
  }
}

}  // namespace polysketch::cuda
