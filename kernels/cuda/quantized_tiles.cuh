// The tensor core product of many quantised rows with weights of 8 or 4 bits (matrix.h), which are
// widened to 8 bits in registers. All sums are of integers and exact: they have the bits of
// quantized_product.cu, whatever the tiles.
#pragma once

#include <cstdint>

#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/planted.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/quantize.h"

namespace polysketch::cuda {

// A product of quantised rows. A sum is scaled by that of its row times that of its column; then the
// bias and the previous value are added.
struct QuantArguments {
  const int8_t* x;        // [rows][padded_in]
  const float* x_scales;  // [rows]
  int64_t rows;
  int padded_in;
  const uint32_t* w;           // words [padded_in / 4 or 8][padded_out]
  const float* column_scales;  // [columns]
  const int8_t* group_scales;  // 4 bits: [padded_in / 32][padded_out]
  int columns, padded_out;
  const float* bias;
  bool accumulate;
  float* out;
  bool aligned;  // column_scales, bias and rows of out, to 16 bytes
};

// Four warps, 2 x 2. A warp has 16-row tiles times spans of 32 columns. Column 8 t + 4 h + j of a
// span is column 2 t + h of the instruction of tile j: so a lane loads the words of four tiles at
// once, and holds the sums of eight columns beside each other.
template <int kRows_, int kColumns_, bool kQ4_>
struct QuantTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kQ4 = kQ4_;
  static constexpr int kThreads = 128, kStages = 4;
  static constexpr int kDepth = 64;  // k of a stage, two instructions
  static constexpr int kWords = kDepth / (kQ4 ? 8 : 4);
  static constexpr int kGroups = kQ4 ? kDepth / 32 : 0;
  // Bytes of rows in shared memory: for ldmatrix an odd number of 16 bytes, for 16 bytes of four
  // rows each at once 32 more than a multiple of 128, so that there are no bank conflicts.
  static constexpr int kXRow = kDepth + 16, kWRow = 4 * kColumns + 32;
  static constexpr int kXBytes = kRows * kXRow, kWBytes = kWords * kWRow;
  static constexpr int kStageBytes = kXBytes + kWBytes + kGroups * kColumns;
  static constexpr size_t kShared = size_t{kStages} * kStageBytes;
  static constexpr int kMTiles = kRows / 32, kSpans = kColumns / 64;
};

// What a thread copies of each stage: 16 bytes of some rows of x, of words and of scales.
template <typename T>
struct QuantCopies {
  static constexpr int kXPieces = T::kDepth / 16, kWPieces = T::kColumns / 4;
  static constexpr int kXStep = T::kThreads / kXPieces, kWStep = T::kThreads / kWPieces;
  static constexpr int kScalePieces = T::kColumns / 16;

  const int8_t* x;
  const uint32_t* w;
  const int8_t* scales = nullptr;
  int x_to, w_to;  // places in a stage
  int rows;        // of x, from the thread's first one on
  bool has_w, has_scales = false;

  __device__ __forceinline__ explicit QuantCopies(const QuantArguments& p) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t row0 = static_cast<int64_t>(blockIdx.y) * T::kRows + thread / kXPieces;
    const int column0 = static_cast<int>(blockIdx.x) * T::kColumns;
    x = p.x + row0 * p.padded_in + thread % kXPieces * 16;
    x_to = thread / kXPieces * T::kXRow + thread % kXPieces * 16;
    rows = p.rows - row0 < T::kRows ? static_cast<int>(p.rows - row0) : T::kRows;
    const int column = column0 + thread % kWPieces * 4;
    w = p.w + static_cast<int64_t>(thread / kWPieces) * p.padded_out + column;
    w_to = T::kXBytes + thread / kWPieces * T::kWRow + thread % kWPieces * 16;
    has_w = column < p.padded_out;
    if constexpr (T::kQ4) {
      const int of_scales = column0 + thread % kScalePieces * 16;
      scales = p.group_scales + thread / kScalePieces * p.padded_out + of_scales;
      has_scales = of_scales < p.padded_out;
    }
  }

  // Starts the copies of the next stage, if there is one. No byte is read where a copy is not valid.
  __device__ __forceinline__ void Start(const QuantArguments& p, bool more, int8_t* stage) {
    if (more) {
#pragma unroll
      for (int i = 0; i < T::kRows / kXStep; ++i) {
        CopyAsync16(stage + x_to + i * kXStep * T::kXRow,
                    x + static_cast<int64_t>(i * kXStep) * p.padded_in, i * kXStep < rows);
      }
#pragma unroll
      for (int i = 0; i < T::kWords / kWStep; ++i) {
        CopyAsync16(stage + w_to + i * kWStep * T::kWRow,
                    w + static_cast<int64_t>(i * kWStep) * p.padded_out, has_w);
      }
      x += T::kDepth;
      w += static_cast<int64_t>(T::kWords) * p.padded_out;
      if constexpr (T::kQ4) {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < T::kGroups * kScalePieces) {
          CopyAsync16(stage + T::kXBytes + T::kWBytes + thread * 16, scales, has_scales);
        }
        scales += T::kGroups * p.padded_out;
      }
    }
    CommitCopies();
  }
};

// The lower half of each byte, minus 8, as a signed byte: no sum carries into the next byte.
__device__ __forceinline__ uint32_t WidenLower(uint32_t word) {
  return ((word & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u;
}

// The two words of k of four columns that are the fragments b0 and b1 of their tiles. w: word row t
// of 32 k.
template <typename T>
__device__ __forceinline__ void LoadWeights(const int8_t* w, uint32_t (&b0)[4], uint32_t (&b1)[4]) {
  const uint4 first = *reinterpret_cast<const uint4*>(w);
  const uint32_t words[4] = {first.x, first.y, first.z, first.w};
  if constexpr (T::kQ4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      b0[j] = WidenLower(words[j]);
      b1[j] = WidenLower(words[j] >> 4);
    }
  } else {
    const uint4 second = *reinterpret_cast<const uint4*>(w + 4 * T::kWRow);
    const uint32_t others[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      b0[j] = words[j];
      b1[j] = others[j];
    }
  }
}

template <typename T>
using QuantSums = int32_t[T::kMTiles][T::kSpans][4][4];

// sums += x w over 32 k. xs, ws: the warp's rows and columns, from the first of these k on; scales:
// of these k, from the warp's first column on.
template <typename T>
__device__ __forceinline__ void MultiplyBytes32(const int8_t* xs, const int8_t* ws,
                                                const int8_t* scales, QuantSums<T>& sums) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int s = 0; s < T::kSpans; ++s) {
    uint32_t b0[4], b1[4];
    LoadWeights<T>(ws + t * T::kWRow + 128 * s + 16 * g, b0, b1);
    uint2 eight = {};
    if constexpr (T::kQ4) eight = *reinterpret_cast<const uint2*>(scales + 32 * s + 8 * t);
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
      uint32_t a[4];
      LoadMatrix4(a, xs + (16 * m + lane % 16) * T::kXRow + lane / 16 * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (!T::kQ4) {
          MmaBytes(sums[m][s][j], a, b0[j], b1[j]);
        } else {
          int32_t group[4] = {};
          MmaBytes(group, a, b0[j], b1[j]);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[m][s][j][i] += group[i] * SignedByte(i % 2 == 0 ? eight.x : eight.y, j);
          }
        }
      }
    }
  }
}

// Scales and stores the sums of a warp. row0, column0: its first ones.
template <typename T>
__device__ __forceinline__ void StoreQuantSums(const QuantArguments& p, int64_t row0, int column0,
                                               const QuantSums<T>& sums) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int s = 0; s < T::kSpans; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = column0 + 32 * s + lane % 4 * 8 + 4 * h;
      if (column >= p.columns) continue;
      const Quad scales = LoadQuad(p.column_scales, column, p.columns, p.aligned);
      Quad bias = {};
      if (p.bias != nullptr) bias = LoadQuad(p.bias, column, p.columns, p.aligned);
#pragma unroll
      for (int half = 0; half < 2 * T::kMTiles; ++half) {
        const int64_t row = row0 + 8 * half + lane / 4;
        if (row >= p.rows) continue;
        float* to = p.out + row * p.columns;
        const float x_scale = p.x_scales[row];
        Quad old = {};
        if (p.accumulate) old = LoadQuad(to, column, p.columns, p.aligned);
        Quad values;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int32_t sum = sums[half / 2][s][j][half % 2 * 2 + h];
          values.v[j] = static_cast<float>(sum) * (x_scale * scales.v[j]);
          if (p.bias != nullptr) values.v[j] += bias.v[j];
          if (p.accumulate) values.v[j] += old.v[j];
        }
        StoreQuad(values, column, p.columns, p.aligned, to);
      }
    }
  }
}

// blockIdx: T::kColumns columns, T::kRows rows.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 2) QuantizedTiles(const QuantArguments p) {
  AfterEarlierKernels();
  auto* stages = SharedMemory<int8_t>();
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * T::kRows;
  const int column0 = static_cast<int>(blockIdx.x) * T::kColumns;
  const int warp = threadIdx.x / kWarpSize;
  const int warp_row = warp % 2 * (16 * T::kMTiles), warp_column = warp / 2 * (32 * T::kSpans);
  QuantCopies<T> copies(p);
  for (int s = 0; s < T::kStages - 1; ++s) {
    copies.Start(p, s * T::kDepth < p.padded_in, stages + s * T::kStageBytes);
  }
  QuantSums<T> sums = {};
  int8_t *stage = stages, *before = stages + (T::kStages - 1) * T::kStageBytes;
  for (int k0 = 0; k0 < p.padded_in; k0 += T::kDepth) {
    if (!PS_PLANTED(QUANT_WAIT)) WaitCopies<T::kStages - 2>();
    // All threads see this stage and have read the one before it.
    if (!PS_PLANTED(QUANT_BARRIER)) __syncthreads();
    copies.Start(p, k0 + (T::kStages - 1) * T::kDepth < p.padded_in, before);
    const int8_t *xs = stage, *ws = stage + T::kXBytes;
#pragma unroll
    for (int k = 0; k < T::kDepth / 32; ++k) {
      MultiplyBytes32<T>(xs + warp_row * T::kXRow + 32 * k,
                         ws + k * (T::kWBytes / 2) + 4 * warp_column,
                         ws + T::kWBytes + k * T::kColumns + warp_column, sums);
    }
    before = stage;
    stage = stage == stages + (T::kStages - 1) * T::kStageBytes ? stages : stage + T::kStageBytes;
  }
  StoreQuantSums<T>(p, row0 + warp_row, column0 + warp_column, sums);
}

}  // namespace polysketch::cuda
