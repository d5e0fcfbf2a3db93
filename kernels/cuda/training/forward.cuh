// The forward pass of training: the parts of attention_parts.cuh in the same order as in serving.
#pragma once

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/training/shape.cuh"

namespace polysketch::cuda {

// blockIdx: rows of a block, head. GATED, here and below: with a decay gate.
template <int D, bool GATED>
__global__ void __launch_bounds__(kTileThreads)
    ForwardTiles(TrainingShape shape, Snapshots snapshots, OutputRows out, float* denominators) {
  constexpr int M = RowTiles<D>();
  const AttentionShape& sizes = shape.attention;
  const RowTile tile(shape, TileRows<D>());
  if (tile.count <= 0) return;
  const int thread = threadIdx.x;
  const int near_size = SharedRow(sizes.near_dim);
  const int far_size = sizes.far_dim > 0 ? SharedRow(sizes.far_dim) : 0;
  auto* far_rows = SharedMemory<Bf16>();
  Bf16* near_rows = far_rows + TileRows<D>() * far_size;
  auto* stages = reinterpret_cast<uint8_t*>(near_rows + TileRows<D>() * near_size);
  CopyTile(shape, tile, shape.near_q, sizes.near_dim, TileRows<D>(), near_rows, kTileThreads);
  if (far_size > 0) {
    CopyTile(shape, tile, shape.far_q, sizes.far_dim, TileRows<D>(), far_rows, kTileThreads);
  }

  const int far_parts =
      shape.ReadsState(tile.block) ? (sizes.features + kPartFeatures - 1) / kPartFeatures : 0;
  const int seen = tile.block_offset + tile.count;  // keys of the block that some row attends to
  const int64_t parts = far_parts + (seen + kPartKeysTensor - 1) / kPartKeysTensor;
  const uint8_t* state = snapshots.Of(shape, tile.block);
  const int64_t block_token = tile.token - tile.block_offset;
  const auto buffer = [&](int stage) {
    return PartBuffer<D>(stages + stage * PartBuffer<D>::Bytes(sizes.near_dim), sizes.near_dim);
  };
  const auto load = [&](int64_t part, int stage) {
    if (part < far_parts) {
      LoadFarPart<D>(sizes, reinterpret_cast<const Bf16*>(state),
                     reinterpret_cast<const float*>(state + snapshots.z), static_cast<int>(part),
                     buffer(stage), thread, kTileThreads);
    } else {
      LoadNearPart<D>(sizes, RowsFrom(shape, shape.near_k, block_token),
                      RowsFrom(shape, shape.v, block_token),
                      static_cast<int>(part - far_parts) * kPartKeysTensor, seen, buffer(stage),
                      thread, kTileThreads);
      if constexpr (GATED) {
        const int first = static_cast<int>(part - far_parts) * kPartKeysTensor;
        CopyDecaySums(shape.DecaySums(block_token) + first, seen - first, buffer(stage).decay_sums,
                      kPartKeysTensor, thread, kTileThreads);
      }
    }
  };
  const int row = thread / kWarpSize * 16 * M;
  RowSums<D, M> total, sums;
  total.Clear();
  load(0, 0);
  ForParts(parts, load, [&](int64_t part, int stage) {
    if (part < far_parts) {
      FarPart<D, M>(sizes, static_cast<int>(part), far_rows + row * far_size, far_size,
                    buffer(stage), &sums);
    } else {
      const int first = static_cast<int>(part - far_parts) * kPartKeysTensor;
      const KeyLimits limits{tile.block_offset + row - first + 1,
                             min(kPartKeysTensor, seen - first), true};
      const auto near = [&](const auto& decay) {
        NearPart<D, M>(sizes, near_rows + row * near_size, near_size, buffer(stage), limits, decay,
                       &sums);
      };
      if constexpr (GATED) {
        near(NearDecay<M>(shape.DecaySums(tile.token) + row, tile.count - row,
                          buffer(stage).decay_sums));
      } else {
        near(NoDecay());
      }
    }
    Merge<D, M>(false, sums, &total);
    if (GATED && part + 1 == far_parts) {
      DecayFarPart(shape.DecaySums(tile.token) + row, tile.count - row, &total);
    }
  });

  const int lane = thread % kWarpSize, t = lane % 4;
  ForRows<M>([&](int m, int half, int r) {
    const float weights = __shfl_sync(kFullWarp, total.weights[m][2 * half], lane - t);
    const float denominator = sizes.stabilizer + weights;
    if (row + r >= tile.count) return;
    const int64_t token = tile.token + row + r;
    if (t == 0) denominators[shape.head() * shape.tokens + token] = denominator;
    const float inverse = 1.0f / denominator;
    const int64_t offset = OffsetOf(shape, out, token);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      StorePair(out, offset + 8 * n + 2 * t, total.values[m][n][2 * half] * inverse,
                total.values[m][n][2 * half + 1] * inverse);
    }
  });
}

}  // namespace polysketch::cuda
