// The forward pass of training by warpgroups, for head size 64 and sketches: the kernels of serving
// (attention_walk.cuh, attention_group.cuh) on arrays with strides. The queries run while the walk
// over the states of their heads goes on. GATED: with a decay gate.
#pragma once

#include "kernels/cuda/attention_group.cuh"
#include "kernels/cuda/attention_walk.cuh"
#include "kernels/cuda/training/shape.cuh"

namespace polysketch::cuda {

// Stores a state as QueryGradients reads it: S [features][64] rounded, z.
__device__ __forceinline__ void StoreSnapshot(int feature, const WalkSums& state, Bf16* S,
                                              float* z) {
  const int t = threadIdx.x % 4;
  ForRows<1>([&](int, int half, int row) {
    const int f = feature + row;
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = UpperPair(state.tiles[n + i] + 2 * half);
      }
      *reinterpret_cast<uint4*>(S + f * 64 + 8 * (n + t)) = TransposeQuad(words);
    }
    if (t == 0) z[f] = state.tiles[8][2 * half];
  });
}

// The far states at the starts of all blocks that have a past; with CHUNK from a state or to one.
// TILES: as ForwardGroups reads them. blockIdx: 64 features, head.
template <bool CHUNK, bool GATED, bool TILES>
__global__ void __launch_bounds__(kWalkThreads, 2)
    WalkForward(TrainingShape shape, Snapshots snapshots, ChunkStates chunk,
                WalkProgress progress) {
  LetNextKernelBegin();
  const int feature = WalkFeature(), head = static_cast<int>(blockIdx.y);
  const int64_t blocks = shape.blocks - (CHUNK && chunk.after != nullptr ? 0 : 1);
  const WalkRows rows{RowsFrom(shape, shape.far_k, 0), RowsFrom(shape, shape.v, 0),
                      blocks * shape.attention.block, shape.attention.block,
                      GATED ? shape.DecaySums(0) : nullptr};
  const int first = static_cast<int>(shape.first_read);  // of the states that are stored
  const auto store = [&](int block, const WalkSums* state) {
    progress.Storing(0, head, feature, block - first);
    uint8_t* snapshot = snapshots.Of(shape, block);
    if constexpr (TILES) {
      StoreTiles(feature, *state, reinterpret_cast<Bf16*>(snapshot));
    } else {
      StoreSnapshot(feature, *state, reinterpret_cast<Bf16*>(snapshot),
                    reinterpret_cast<float*>(snapshot + snapshots.z));
    }
  };
  const int64_t z = int64_t{shape.attention.features} * 64;
  WalkSums state;
  state.Clear();
  if (CHUNK && WalkPlace().group == 0 && chunk.before != nullptr) {
    const float* before = chunk.before + chunk.Offset<64>(shape);
    state.Visit(
        feature,
        [&](int64_t at, float* low, float* high) {
          *low = before[at];
          *high = before[at + 1];
        },
        [&](int64_t f, float* sum) { *sum = before[z + f]; });
    store(0, &state);
  }
  const bool last =
      WalkBlocks<GATED>(rows, shape.attention.tiles, &state, [&](int block, const WalkSums* sums) {
        if (!CHUNK || block + 1 < shape.blocks) store(block + 1, sums);
      });
  progress.End(0, head, feature, static_cast<int>(shape.blocks) - first);
  if (CHUNK && last && chunk.after != nullptr) {
    float* after = chunk.after + chunk.Offset<64>(shape);
    state.Visit(
        feature,
        [&](int64_t at, const float* low, const float* high) {
          after[at] = *low;
          after[at + 1] = *high;
        },
        [&](int64_t f, const float* sum) { after[z + f] = *sum; });
  }
}

// blockIdx: head, rows of a block.
template <int NEAR, int POWER, bool GATED>
__global__ void __launch_bounds__(kGroupThreads, 2)
    ForwardGroups(TrainingShape heads, Snapshots snapshots, OutputRows out, float* denominators,
                  WalkProgress progress) {
  const int head = blockIdx.x;  // of the group
  const TrainingShape shape = heads.OfHead(head);
  const AttentionShape& sizes = shape.attention;
  const RowTile tile(shape, kGroupRows, blockIdx.y);
  const bool last = blockIdx.y + 1 == gridDim.y && blockIdx.x + 1 == gridDim.x;
  if (tile.count <= 0) {
    if (last) AwaitLastKernel();
    return;
  }
  const GroupMemory memory(SharedMemory<uint8_t>(), sizes.far_dim);
  const uint8_t* state = snapshots.data + (head * shape.blocks + tile.block) * snapshots.bytes;
  const int64_t block_token = tile.token - tile.block_offset;
  const GroupRows rows{state,
                       RowsFrom(shape, shape.near_k, block_token),
                       RowsFrom(shape, shape.v, block_token),
                       sizes.tiles,
                       sizes.features,
                       shape.ReadsState(tile.block),
                       tile.block_offset,
                       tile.count,
                       sizes.stabilizer,
                       GATED ? shape.DecaySums(block_token) : nullptr};
  GroupAttention<NEAR, POWER, GATED> attention(rows, memory);
  const RowArray near = RowsFrom(shape, shape.near_q, tile.token);
  CopySwizzled<kGroupRows, NEAR, kGroupThreads>(near.data, near.stride, tile.count, memory.near_q);
  CommitCopies();
  const RowArray far = RowsFrom(shape, shape.far_q, tile.token);
  const int quads = sizes.far_dim / 4;
  for (int i = threadIdx.x; rows.past && i < kGroupRows * quads; i += kGroupThreads) {
    const int row = i / quads, quad = i % quads;
    uint2 q{};
    if (row < rows.count) q = reinterpret_cast<const uint2*>(far.row(row))[quad];
    memory.StoreFar(row, quad, q);
  }
  if (rows.past) progress.Await(0, head, static_cast<int>(tile.block + 1 - shape.first_read));
  WaitCopies<0>();
  __syncthreads();
  attention.Begin();
  attention.Run(
      [&](int row, int column, float low, float high) {
        StorePair(out, OffsetOf(shape, out, tile.token + row) + column, low, high);
      },
      [&](int row, float denominator) {
        denominators[shape.head() * shape.tokens + tile.token + row] = denominator;
      });
  // The kernels after this one follow the walk too: the last thread block waits for its end.
  if (last) AwaitLastKernel();
}

}  // namespace polysketch::cuda
