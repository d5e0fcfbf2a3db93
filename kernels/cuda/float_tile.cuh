// The float32 sums of a tile of a product, for kernels that load operands and store sums in
// different ways. A thread block has 256 threads, each with 4 rows and kColumns columns, 16 apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {

constexpr int kFloatThreads = 256;
constexpr int kFloatStep = 16;  // between the rows, and the columns, of a thread
constexpr int kFloatRows = 4 * kFloatStep;
constexpr int kFloatDepth = 16;
// A shared row of x is one element longer than its data, so that there are no bank conflicts.
constexpr int kFloatXRow = kFloatRows + 1;

template <int kColumns>
constexpr size_t FloatTileShared() {
  return kFloatDepth * (kFloatXRow + kColumns * kFloatStep) * sizeof(float);
}

// sums += x w over k in [0, depth), in order, one fused multiply-add for each k. x(row, k) and
// w(k, column) return the elements at rows and columns of the tile, zero outside the matrix.
template <int kColumns, typename X, typename W>
__device__ void AddFloatProducts(int64_t depth, const X& x, const W& w,
                                 float (&sums)[4][kColumns]) {
  constexpr int kWRow = kColumns * kFloatStep;
  auto* xs = SharedMemory<float>();           // [kFloatDepth][kFloatXRow]
  float* ws = xs + kFloatDepth * kFloatXRow;  // [kFloatDepth][kWRow]
  const int ty = threadIdx.x / kFloatStep, tx = threadIdx.x % kFloatStep;
  for (int64_t k0 = 0; k0 < depth; k0 += kFloatDepth) {
    for (int i = threadIdx.x; i < kFloatDepth * kFloatRows; i += kFloatThreads) {
      const int r = i / kFloatDepth, k = i % kFloatDepth;
      xs[k * kFloatXRow + r] = k0 + k < depth ? x(r, k0 + k) : 0.0f;
    }
    for (int i = threadIdx.x; i < kFloatDepth * kWRow; i += kFloatThreads) {
      const int k = i / kWRow, c = i % kWRow;
      ws[i] = k0 + k < depth ? w(k0 + k, c) : 0.0f;
    }
    __syncthreads();
    const int steps = depth - k0 < kFloatDepth ? static_cast<int>(depth - k0) : kFloatDepth;
    for (int k = 0; k < steps; ++k) {
      for (int r = 0; r < 4; ++r) {
        const float left = xs[k * kFloatXRow + ty + kFloatStep * r];
        for (int c = 0; c < kColumns; ++c) {
          sums[r][c] = fmaf(left, ws[k * kWRow + tx + kFloatStep * c], sums[r][c]);
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace polysketch::cuda
