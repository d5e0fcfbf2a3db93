// Operands of tensor cores of 8-bit numbers (mx_int8.h): rows in shared memory, and the fragments of bf16 that
// registers of ldmatrix become.
#pragma once

#include "kernels/cuda/attention_shape.cuh"
#include "kernels/cuda/mx_int8.h"

namespace polysketch::cuda {

constexpr int kMxPad = 16;  // after each shared row, so that ldmatrix has no bank conflicts

// Rows of D numbers in shared memory: numbers [rows][D + pad], scales [rows][D / 32].
template <int D>
struct MxTile {
  static constexpr int kScales = D / kMxBlock;  // of a row
  uint8_t *numbers, *scales;
  __device__ __forceinline__ MxTile(void* memory, int rows)
      : numbers(static_cast<uint8_t*>(memory)), scales(numbers + rows * (D + kMxPad)) {}
  __device__ __forceinline__ uint8_t* End(int rows) const { return scales + rows * kScales; }
  // The same rows from a column on, a multiple of 32.
  __device__ __forceinline__ MxTile operator+(int column) const {
    MxTile tile = *this;
    tile.numbers += column;
    tile.scales += column / kMxBlock;
    return tile;
  }
};

// An array of `rows` rows.
struct MxArray {
  const uint8_t* data;
  int rows;
};

// Starts the copy of rows first to first + `rows` - 1 of an array to a tile, of which those from `valid` on
// become zero.
template <int D>
__device__ __forceinline__ void LoadMxRows(const MxArray& array, int first, int valid, int rows,
                                           const MxTile<D>& to, int thread, int threads) {
  constexpr int kScales = MxTile<D>::kScales;
  const uint8_t* numbers = array.data + static_cast<int64_t>(first) * D;
  const uint8_t* scales =
      array.data + MxScalesAt(static_cast<int64_t>(array.rows) * D) + first * kScales;
  for (RowPieces at(D / 16, thread, threads); at.row < rows; at.Next()) {
    const bool inside = at.row < valid;
    CopyAsync16(to.numbers + at.row * (D + kMxPad) + at.piece * 16,
                inside ? numbers + at.row * D + at.piece * 16 : numbers, inside);
  }
  const int size = valid * kScales;
  for (int i = 16 * thread; i < rows * kScales; i += 16 * threads) {
    CopyAsyncFirst(to.scales + i, i < size ? scales + i : scales, max(0, min(16, size - i)));
  }
}

// The scales of two numbers that are a pair, and -128 times them.
struct MxScalePair {
  uint32_t scales, shifts;
  __device__ __forceinline__ MxScalePair(uint8_t low, uint8_t high)
      : scales(static_cast<uint32_t>(low) << 7 | static_cast<uint32_t>(high) << 23),
        shifts(MultiplyBf16(scales, 0xc300c300u)) {}
  // The products of numbers, bytes 0 and 2 of `word`, with the scales: 128 and the magnitude are a number
  // of bf16, the fused multiplication takes 128 away, and nothing is rounded.
  __device__ __forceinline__ uint32_t Products(uint32_t word) const {
    return FmaBf16((word & 0x007f007fu) | 0x43004300u, scales, shifts) ^
           ((word << 8) & 0x80008000u);
  }
};

// AddProduct (attention_parts.cuh) of a tile. A register of ldmatrix has two numbers of either row, which
// belong to columns g and g + 8 (MxPlace).
template <int W, int M, int D>
__device__ __forceinline__ void AddProduct(const uint32_t (&a)[M][4], const MxTile<D>& right, int,
                                           int k, float (&sums)[M][W / 8][4]) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  constexpr int kScales = MxTile<D>::kScales;
  const uint8_t* row = right.numbers + (k + lane % 16) * (D + kMxPad) + lane / 16 * 16;
  const uint8_t* scales = right.scales + (k + 2 * t) * kScales;
#pragma unroll
  for (int block = 0; block < W / kMxBlock; ++block) {
    uint32_t words[4];
    LoadMatrix4T(words, row + block * kMxBlock);
    const MxScalePair low(scales[block], scales[kScales + block]);
    const MxScalePair high(scales[8 * kScales + block], scales[9 * kScales + block]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int shift = i % 2 * 8;
      const uint32_t b0 = low.Products(words[i / 2 * 2] >> shift);
      const uint32_t b1 = high.Products(words[i / 2 * 2 + 1] >> shift);
#pragma unroll
      for (int m = 0; m < M; ++m) MmaBf16(sums[m][4 * block + i], a[m], b0, b1);
    }
  }
}

// B fragments of keys `key` to key + 15 of a tile of 8-bit numbers, elements 32 `block` to + 31: b[n][c] of
// keys 8 n to 8 n + 7 and elements 16 c to 16 c + 15. A register of ldmatrix has elements 2 t, 2 t + 8, 2 t +
// 1 and 2 t + 9 of a key (MxPlace).
template <int D>
__device__ __forceinline__ void MxKeys(const MxTile<D>& keys, int key, int block,
                                       uint32_t (&b)[2][2][2]) {
  const int lane = threadIdx.x % kWarpSize, row = key + lane / 16 * 8 + lane % 8;
  uint32_t words[4];
  LoadMatrix4(words, keys.numbers + row * (D + kMxPad) + block * kMxBlock + lane / 8 % 2 * 16);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint8_t scale = keys.scales[(key + 8 * n + lane / 4) * MxTile<D>::kScales + block];
    const MxScalePair pair(scale, scale);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      b[n][c][0] = pair.Products(words[2 * n + c]);
      b[n][c][1] = pair.Products(words[2 * n + c] >> 8);
    }
  }
}

}  // namespace polysketch::cuda
