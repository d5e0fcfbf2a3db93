// What the training kernels share: arrays [batch, heads, tokens, width] with strides, and the part
// of them that a thread block computes. A launch computes a group of heads; blockIdx.y is a head of
// it.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/training/polysketch_attention.h"

namespace polysketch::cuda {

// An input array. Strides are in elements. `skip` is subtracted from offsets, for arrays that hold
// only the heads of one group.
struct TokenRows {
  const Bf16* data = nullptr;
  int64_t batch = 0, head = 0, token = 0, skip = 0;
};
struct OutputRows {
  void* data = nullptr;
  int64_t batch = 0, head = 0, token = 0;
  int type = POLYSKETCH_BF16;
};

// A kernel argument.
struct TrainingShape {
  AttentionShape attention;  // sizes only
  int64_t tokens = 0, blocks = 0;
  int64_t first = 0;  // first head of the group, in [0, batch * heads)
  TokenRows near_q, near_k, far_q, far_k, v;
  const float* decay_sums = nullptr;  // G from the start of each block [group][tokens]; with a gate
  int64_t first_read = 1;  // the first block whose queries read a far state; 0: tokens precede it

  int64_t own = -1;  // the head of the group, if it is not blockIdx.y
  __device__ __forceinline__ int64_t of_group() const {  // the head in its group
    return own < 0 ? static_cast<int64_t>(blockIdx.y) : own;
  }
  __device__ __forceinline__ int64_t head() const { return first + of_group(); }
  __device__ __forceinline__ TrainingShape OfHead(int64_t head) const {
    TrainingShape shape = *this;
    shape.own = head;
    return shape;
  }
  __device__ __forceinline__ bool ReadsState(int64_t block) const { return block >= first_read; }
  // G of tokens from `token` on.
  __device__ __forceinline__ const float* DecaySums(int64_t token) const {
    return decay_sums + of_group() * tokens + token;
  }
  // G of the last token of a block.
  __device__ __forceinline__ float LastDecaySum(int64_t block) const {
    return *DecaySums(block * attention.block + BlockTokens(block) - 1);
  }
  // Number of tokens of a block; the last block may have fewer.
  __device__ __forceinline__ int BlockTokens(int64_t block) const {
    const int64_t left = tokens - block * attention.block;
    return left < attention.block ? static_cast<int>(left) : attention.block;
  }
};

template <typename Rows>
__device__ __forceinline__ int64_t OffsetOf(const TrainingShape& shape, const Rows& rows,
                                            int64_t token) {
  // 32 bits are enough for the number of heads that a device's memory holds, and divide faster.
  const auto head = static_cast<uint32_t>(shape.head());
  const auto heads = static_cast<uint32_t>(shape.attention.heads);
  return head / heads * rows.batch + head % heads * rows.head + token * rows.token;
}

// The rows of this thread block's head from `token` on.
__device__ __forceinline__ RowArray RowsFrom(const TrainingShape& shape, const TokenRows& rows,
                                             int64_t token) {
  return {rows.data + (OffsetOf(shape, rows, token) - rows.skip), rows.token};
}

// Rounds float16 rows of a group of heads to bf16, [group][tokens][width]. blockIdx: pieces, head.
__global__ void RoundInputs(TrainingShape shape, TokenRows from, int width, Bf16* to) {
  const int64_t pairs = shape.tokens * (width / 2);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t token = i / (width / 2), column = i % (width / 2) * 2;
    const Bf16* row = RowsFrom(shape, from, token).data;
    *reinterpret_cast<uint32_t*>(to + (blockIdx.y * shape.tokens + token) * width + column) =
        PackBf16(WidenF16(row[column]), WidenF16(row[column + 1]));
  }
}

__device__ __forceinline__ void StorePair(const OutputRows& rows, int64_t offset, float low,
                                          float high) {
  if (rows.type == POLYSKETCH_F32) {
    auto* out = static_cast<float*>(rows.data) + offset;
    out[0] = low;
    out[1] = high;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(rows.data) + offset) =
        rows.type == POLYSKETCH_BF16 ? PackBf16(low, high)
                                     : RoundF16(low) | static_cast<uint32_t>(RoundF16(high)) << 16;
  }
}

struct Pair {
  float low, high;
};
// Elements `offset` and `offset` + 1; `offset` is even.
__device__ __forceinline__ Pair LoadPair(const OutputRows& rows, int64_t offset) {
  if (rows.type == POLYSKETCH_F32) {
    struct alignas(8) Floats {
      float x, y;
    };
    const auto pair =
        *reinterpret_cast<const Floats*>(static_cast<const float*>(rows.data) + offset);
    return {pair.x, pair.y};
  }
  const uint32_t pair =
      *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(rows.data) + offset);
  const auto low = static_cast<uint16_t>(pair), high = static_cast<uint16_t>(pair >> 16);
  return rows.type == POLYSKETCH_BF16 ? Pair{WidenBf16(low), WidenBf16(high)}
                                      : Pair{WidenF16(low), WidenF16(high)};
}

// The far states that blocks read: [group][blocks], each S [features][D] in bf16, then z.
struct Snapshots {
  uint8_t* data = nullptr;
  int64_t bytes = 0, z = 0;  // size of a snapshot; offset of z in it
  __device__ __forceinline__ uint8_t* Of(const TrainingShape& shape, int64_t block) const {
    return data + (blockIdx.y * shape.blocks + block) * bytes;
  }
};

// The states before and after a chunk (polysketch_attention.h), or null.
struct ChunkStates {
  const float* before = nullptr;
  float* after = nullptr;
  // Of the state of this thread block's head.
  template <int D>
  __device__ __forceinline__ int64_t Offset(const TrainingShape& shape) const {
    return shape.head() * shape.attention.features * (D + 1);
  }
};

// The tokens of a thread block, all in one block. There are none if count <= 0.
struct RowTile {
  int64_t block, token;  // the first token
  int block_offset;      // of the first token
  int count;             // tokens
  int block_tokens;      // tokens of the block
  __device__ __forceinline__ RowTile(const TrainingShape& shape, int rows)
      : RowTile(shape, rows, blockIdx.x) {}
  __device__ __forceinline__ RowTile(const TrainingShape& shape, int rows, unsigned index) {
    const int per_block = (shape.attention.block + rows - 1) / rows;
    block = index / per_block;
    block_offset = static_cast<int>(index % per_block) * rows;
    block_tokens = shape.BlockTokens(block);
    count = min(rows, block_tokens - block_offset);
    token = block * shape.attention.block + block_offset;
  }
};

// Starts the copy of a tile's rows of one array to padded shared rows of PadTo16(width).
__device__ __forceinline__ void CopyTile(const TrainingShape& shape, const RowTile& tile,
                                         const TokenRows& rows, int width, int tile_rows, Bf16* to,
                                         int threads) {
  const RowArray from = RowsFrom(shape, rows, tile.token);
  CopyRows(from.data, from.stride, width, tile.count, to, PadTo16(width), tile_rows, threadIdx.x,
           threads);
}

__host__ __device__ inline int SharedRow(int width) { return PadTo16(width) + kRowPad; }

}  // namespace polysketch::cuda
