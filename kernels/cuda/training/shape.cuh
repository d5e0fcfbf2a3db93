// What the training kernels share: arrays [batch, heads, tokens, width] with strides, and where a
// thread block stands in them. blockIdx.y is a head of the group of heads that a launch works on.
#pragma once

#include "kernels/cuda/attention_parts.cuh"

namespace polysketch::cuda {

// Strides in elements. skip: subtracted from an offset; for arrays that hold one group of heads.
struct TokenRows {
  const Bf16* data = nullptr;
  int64_t batch = 0, head = 0, token = 0, skip = 0;
};
struct OutputRows {
  void* data = nullptr;
  int64_t batch = 0, head = 0, token = 0;
  bool wide = false;  // float32, else bf16
};

// Passed to kernels by value.
struct TrainingShape {
  AttentionShape attention;  // sizes only
  int64_t tokens = 0, blocks = 0;
  int64_t first = 0;  // of the group, in batch * heads
  TokenRows near_q, near_k, far_q, far_k, v;

  __device__ __forceinline__ int64_t head() const { return first + blockIdx.y; }
  // Tokens of a block; the last may have fewer.
  __device__ __forceinline__ int Held(int64_t block) const {
    const int64_t left = tokens - block * attention.block;
    return left < attention.block ? static_cast<int>(left) : attention.block;
  }
};

template <typename Rows>
__device__ __forceinline__ int64_t OffsetOf(const TrainingShape& shape, const Rows& rows,
                                            int64_t token) {
  const int64_t head = shape.head(), heads = shape.attention.heads;
  return head / heads * rows.batch + head % heads * rows.head + token * rows.token;
}

// Rows of this thread block's head from `token` on.
__device__ __forceinline__ RowArray RowsFrom(const TrainingShape& shape, const TokenRows& rows,
                                             int64_t token) {
  return {rows.data + (OffsetOf(shape, rows, token) - rows.skip), rows.token};
}

__device__ __forceinline__ void StorePair(const OutputRows& rows, int64_t offset, float low,
                                          float high) {
  if (rows.wide) {
    auto* out = static_cast<float*>(rows.data) + offset;
    out[0] = low;
    out[1] = high;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(rows.data) + offset) = PackBf16(low, high);
  }
}

__device__ __forceinline__ float LoadOutput(const OutputRows& rows, int64_t offset) {
  return rows.wide ? static_cast<const float*>(rows.data)[offset]
                   : WidenBf16(static_cast<const Bf16*>(rows.data)[offset]);
}

// The far states that blocks read: [group][blocks], each S [features][D] as bf16, then z.
struct Snapshots {
  uint8_t* data = nullptr;
  int64_t bytes = 0, z = 0;  // of one; offset of z in it
  __device__ __forceinline__ uint8_t* Of(const TrainingShape& shape, int64_t block) const {
    return data + (blockIdx.y * shape.blocks + block) * bytes;
  }
};

// The tokens of a thread block: some of one block. count <= 0: none.
struct RowTile {
  int64_t block, token;  // the first token
  int place, count;      // its place in the block; tokens
  int held;              // tokens of the block
  __device__ __forceinline__ RowTile(const TrainingShape& shape, int rows) {
    const int per_block = (shape.attention.block + rows - 1) / rows;
    block = blockIdx.x / per_block;
    place = static_cast<int>(blockIdx.x % per_block) * rows;
    held = shape.Held(block);
    count = min(rows, held - place);
    token = block * shape.attention.block + place;
  }
};

// Copies a tile's rows of one array to shared rows of PadTo16(width) + pad.
__device__ __forceinline__ void CopyTile(const TrainingShape& shape, const RowTile& tile,
                                         const TokenRows& rows, int width, int tile_rows, Bf16* to,
                                         int threads) {
  const RowArray from = RowsFrom(shape, rows, tile.token);
  CopyRows(from.data, from.stride, width, tile.count, to, PadTo16(width), tile_rows, threadIdx.x,
           threads);
}

__host__ __device__ inline int SharedRow(int width) { return PadTo16(width) + kRowPad; }

}  // namespace polysketch::cuda
