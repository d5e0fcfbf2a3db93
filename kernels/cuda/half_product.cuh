// The tensor core product of many rows: x [rows, padded_in] times w [padded_in, padded_out], both of
// 16 bits and padded with zeros (matrix.h). Each sum is one chain over k in order, from zero.
#pragma once

#include <cstdint>

#include "kernels/cuda/mlp_gate.cuh"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {

// Stores the sum of a product's element.
__device__ __forceinline__ void Finish(float sum, const float* bias, bool accumulate,
                                       int64_t column, float* out) {
  if (bias != nullptr) sum += bias[column];
  if (accumulate) sum += *out;
  *out = sum;
}

// Of a column and the next one, if there is one.
__device__ __forceinline__ void FinishPair(float first, float second, const float* bias,
                                           bool accumulate, int64_t column, int64_t columns,
                                           float* out) {
  if (columns % 2 != 0) {
    Finish(first, bias, accumulate, column, out);
    if (column + 1 < columns) Finish(second, bias, accumulate, column + 1, out + 1);
    return;
  }
  if (bias != nullptr) {
    first += bias[column];
    second += bias[column + 1];
  }
  auto* pair = reinterpret_cast<float2*>(out);
  if (accumulate) {
    const float2 old = *pair;
    first += old.x;
    second += old.y;
  }
  *pair = make_float2(first, second);
}

// Tiles of 16-bit products.
template <int kRows_, int kColumns_, int kStages_>
struct HalfTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_;
  static constexpr int kDepth = 32;
  static constexpr int kThreads = 128;
  // Rows of shared tiles are 16 bytes longer than their data, so that ldmatrix has no bank
  // conflicts.
  static constexpr int kXRow = kDepth + 8, kWRow = kColumns + 8;
  static constexpr int kStageHalves = kRows * kXRow + kDepth * kWRow;
  static constexpr size_t kShared = kStages * kStageHalves * sizeof(uint16_t);
  // Four warps, 2 x 2, or 1 x 4 for few rows; 16 x 8 outputs are one instruction.
  static constexpr int kWarpsDown = kRows > 16 ? 2 : 1;
  static constexpr int kMTiles = kRows / kWarpsDown / 16;
  static constexpr int kWarpColumns = kColumns * kWarpsDown / 4;
  static constexpr int kNTiles = kWarpColumns / 8;
};
// What becomes of the sums of a product [rows, columns].
struct HalfOutput {
  float* floats = nullptr;      // + bias if not null, + floats if `accumulate`
  const float* bias = nullptr;  // [columns]
  bool accumulate = false;
  // With a gate: u times the gate of g, of sums [u, g], rounded, [rows, columns / 2].
  uint16_t* gated = nullptr;
  GateKind gate = GateKind::kGelu;  // not kUngatedGelu
};

// The column of w that a thread copies: its 8 columns of the tile, which are the same in every row.
// With a gate, tiles of 8 columns of u alternate with those of g, so that a thread has the sums of
// both. `inside` is false after the last column.
template <typename T, bool kGate>
__device__ __forceinline__ int64_t ColumnOfThread(int64_t columns, bool* inside) {
  const int64_t block = blockIdx.x;
  const int c = static_cast<int>(threadIdx.x) % (T::kColumns / 8) * 8;
  if constexpr (kGate) {
    const int64_t hidden = columns / 2, column = block * (T::kColumns / 2) + c / 16 * 8;
    *inside = column < hidden;
    return c % 16 == 0 ? column : hidden + column;
  } else {
    *inside = block * T::kColumns + c < columns;
    return block * T::kColumns + c;
  }
}

// w: at the thread's column.
template <typename T>
__device__ __forceinline__ void LoadStage(const uint16_t* x, int64_t rows, int64_t padded_in,
                                          const uint16_t* w, bool inside_w, int64_t padded_out,
                                          int64_t k0, uint16_t* stage) {
  if (k0 < padded_in) {
    constexpr int kXWords = T::kDepth / 8, kWWords = T::kColumns / 8;
#pragma unroll
    for (int i = 0; i < (T::kRows * kXWords + T::kThreads - 1) / T::kThreads; ++i) {
      const int r = static_cast<int>(threadIdx.x) / kXWords + i * (T::kThreads / kXWords);
      const int k = static_cast<int>(threadIdx.x) % kXWords * 8;
      if (T::kRows * kXWords < T::kThreads && r >= T::kRows) break;
      const bool inside = r < rows;
      CopyAsync16(stage + r * T::kXRow + k, x + (inside ? r : 0) * padded_in + k0 + k, inside);
    }
    uint16_t* ws = stage + T::kRows * T::kXRow;
#pragma unroll
    for (int i = 0; i < T::kDepth * kWWords / T::kThreads; ++i) {
      const int k = static_cast<int>(threadIdx.x) / kWWords + i * (T::kThreads / kWWords);
      const int c = static_cast<int>(threadIdx.x) % kWWords * 8;
      CopyAsync16(ws + k * T::kWRow + c, w + (k0 + k) * padded_out, inside_w);
    }
  }
  CommitCopies();
}

// sums += x w over the 16 k of a stage from k on.
template <typename T, bool kBf16>
__device__ __forceinline__ void Multiply16(const uint16_t* xs, const uint16_t* ws, int k,
                                           float (&sums)[T::kMTiles][T::kNTiles][4]) {
  const int lane = threadIdx.x % kWarpSize;
  uint32_t a[T::kMTiles][4];
#pragma unroll
  for (int m = 0; m < T::kMTiles; ++m) {
    LoadMatrix4(a[m], xs + (16 * m + lane % 16) * T::kXRow + k + lane / 16 * 8);
  }
#pragma unroll
  for (int n = 0; n < T::kNTiles; n += 2) {
    uint32_t b[4];  // rows k, k + 8 of columns 8 n; then of 8 (n + 1)
    LoadMatrix4T(b, ws + (k + lane % 16) * T::kWRow + 8 * n + lane / 16 * 8);
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
      MmaHalf<kBf16>(sums[m][n], a[m], b[0], b[1]);
      MmaHalf<kBf16>(sums[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

// Stores the sums of a warp. row, column: its first ones.
template <typename T>
__device__ __forceinline__ void StoreSums(const float (&sums)[T::kMTiles][T::kNTiles][4],
                                          int64_t row0, int64_t column0, int64_t rows,
                                          int64_t columns, const HalfOutput& output) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < T::kNTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int64_t row = row0 + 16 * m + lane / 4 + i / 2 * 8;
        const int64_t column = column0 + 8 * n + lane % 4 * 2;
        if (row >= rows || column >= columns) continue;
        FinishPair(sums[m][n][i], sums[m][n][i + 1], output.bias, output.accumulate, column,
                   columns, output.floats + row * columns + column);
      }
    }
  }
}

// StoreSums with a gate: tiles n and n + 1 are those of u and g. column0: of the result.
template <typename T, bool kBf16>
__device__ __forceinline__ void StoreGated(const float (&sums)[T::kMTiles][T::kNTiles][4],
                                           int64_t row0, int64_t column0, int64_t rows,
                                           int64_t hidden, const HalfOutput& output) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < T::kNTiles; n += 2) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int64_t row = row0 + 16 * m + lane / 4 + i / 2 * 8;
        const int64_t column = column0 + 4 * n + lane % 4 * 2;
        if (row >= rows || column >= hidden) continue;
        const float *u = sums[m][n] + i, *g = sums[m][n + 1] + i;
        *reinterpret_cast<uint32_t*>(output.gated + row * hidden + column) =
            PackHalf<kBf16>(Gated(output.gate, u[0], g[0]), Gated(output.gate, u[1], g[1]));
      }
    }
  }
}

template <typename T, bool kBf16, bool kGate>
__global__ void __launch_bounds__(T::kThreads, 2)
    HalfProduct(const uint16_t* x, int64_t rows, int64_t padded_in, const uint16_t* w,
                int64_t columns, int64_t padded_out, const HalfOutput output) {
  AfterEarlierKernels();
  auto* shared = SharedMemory<uint16_t>();
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * T::kRows;
  const int warp = threadIdx.x / kWarpSize;
  const int warp_row = warp % T::kWarpsDown * (16 * T::kMTiles);
  const int warp_column = warp / T::kWarpsDown * T::kWarpColumns;
  x += row0 * padded_in;
  bool inside_w = false;
  const int64_t own_column = ColumnOfThread<T, kGate>(kGate ? columns : padded_out, &inside_w);
  if (inside_w) w += own_column;
  const auto load = [&](int64_t k0, int stage) {
    LoadStage<T>(x, rows - row0, padded_in, w, inside_w, padded_out, k0,
                 shared + stage * T::kStageHalves);
  };

  float sums[T::kMTiles][T::kNTiles][4] = {};
  for (int s = 0; s < T::kStages - 1; ++s) load(s * T::kDepth, s);
  int stage = 0;
  for (int64_t k0 = 0; k0 < padded_in; k0 += T::kDepth) {
    WaitCopies<T::kStages - 2>();
    __syncthreads();  // all threads see this stage and have read the one before it
    load(k0 + (T::kStages - 1) * T::kDepth, stage == 0 ? T::kStages - 1 : stage - 1);
    const uint16_t* xs = shared + stage * T::kStageHalves;
    const uint16_t* ws = xs + T::kRows * T::kXRow;
#pragma unroll
    for (int k = 0; k < T::kDepth; k += 16) {
      Multiply16<T, kBf16>(xs + warp_row * T::kXRow, ws + warp_column, k, sums);
    }
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * T::kColumns + warp_column;
  if constexpr (kGate) {
    StoreGated<T, kBf16>(sums, row0 + warp_row, column0 / 2, rows, columns / 2, output);
  } else {
    StoreSums<T>(sums, row0 + warp_row, column0, rows, columns, output);
  }
}

}  // namespace polysketch::cuda
