// The backward pass of training. ScaleCotangents computes a and e of every query. QueryGradients
// reads the states of earlier blocks and KeyGradients the states of later blocks (states.cuh); both
// process far and near parts of a tile of rows (gradient_parts.cuh).
#pragma once

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/training/gradient_parts.cuh"
#include "kernels/cuda/training/shape.cuh"

namespace polysketch::cuda {

struct Backward {
  TokenRows a;               // [group][tokens][D]
  const float* e = nullptr;  // [group][tokens]
  Snapshots snapshots;       // S for queries, R for keys
  OutputRows near, far, v;   // gradients; near is not written if the near rows are the far rows
  bool own_near = false;     // whether the near rows differ from the far rows
};

// a = g / D and e = -(g . out) / D. blockIdx: tokens, head. One warp for each token.
template <int D>
__global__ void ScaleCotangents(TrainingShape shape, TokenRows g, OutputRows out,
                                const float* denominators, Bf16* a, float* e) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t token =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  if (token >= shape.tokens) return;
  const float inverse = 1.0f / denominators[shape.head() * shape.tokens + token];
  const Bf16* g_row = RowsFrom(shape, g, token).data;
  const int64_t out_row = OffsetOf(shape, out, token), in_group = blockIdx.y * shape.tokens + token;
  float dot = 0;
  for (int i = lane; i < D; i += kWarpSize) {
    const float value = WidenBf16(g_row[i]);
    dot = fmaf(value, LoadOutput(out, out_row + i), dot);
    a[in_group * D + i] = RoundBf16(value * inverse);
  }
  dot = WarpSum(dot);
  if (lane == 0) e[in_group] = -dot * inverse;
}

// 16-row tiles of a warp.
template <int D>
constexpr int GradientTiles() {
  return D <= 64 ? 2 : 1;
}
template <int D>
constexpr int GradientRows() {
  return kTileWarps * 16 * GradientTiles<D>();
}

// Bytes of a part's buffer, and of a float for each of its 64 near rows.
template <int D>
__host__ __device__ int64_t GradientStage(int near_dim) {
  return PartBuffer<D>::Bytes(near_dim) + kPartKeysTensor * 4;
}

// Shared memory of a tile: near and far rows, duals, gradients of far rows, two stages.
template <int D>
struct GradientMemory {
  Bf16 *near, *far, *duals;
  float* gradients;
  uint8_t* stages;
  int near_size, far_size, gradient_size;

  static __host__ __device__ int FarSize(int far_dim) {
    return far_dim > 0 ? SharedRow(far_dim) : 0;
  }
  static __host__ __device__ int GradientSize(int far_dim) {
    return far_dim > 0 ? far_dim + kRowPad : 0;
  }
  static int64_t Bytes(int far_dim, int near_dim) {
    const int64_t row =
        (SharedRow(near_dim) + FarSize(far_dim) + D + kRowPad) * 2 + GradientSize(far_dim) * 4;
    return GradientRows<D>() * row + 2 * GradientStage<D>(near_dim);
  }

  __device__ explicit GradientMemory(const AttentionShape& shape)
      : near_size(SharedRow(shape.near_dim)),
        far_size(FarSize(shape.far_dim)),
        gradient_size(GradientSize(shape.far_dim)) {
    near = SharedMemory<Bf16>();
    far = near + GradientRows<D>() * near_size;
    duals = far + GradientRows<D>() * far_size;
    gradients = reinterpret_cast<float*>(duals + GradientRows<D>() * (D + kRowPad));
    stages = reinterpret_cast<uint8_t*>(gradients + GradientRows<D>() * gradient_size);
  }
  __device__ PartBuffer<D> buffer(const AttentionShape& shape, int stage) const {
    return PartBuffer<D>(stages + stage * GradientStage<D>(shape.near_dim), shape.near_dim);
  }
  __device__ float* scalars(const AttentionShape& shape, int stage) const {
    return reinterpret_cast<float*>(stages + stage * GradientStage<D>(shape.near_dim) +
                                    PartBuffer<D>::Bytes(shape.near_dim));
  }
  // The warp's rows from `row` on.
  __device__ FeatureRows feature_rows(int row) const {
    return {far + row * far_size, duals + row * (D + kRowPad), gradients + row * gradient_size,
            far_size, gradient_size};
  }
  __device__ NearRows near_rows(int row) const {
    return {near + row * near_size, duals + row * (D + kRowPad), near_size};
  }
};

// Sets the lane's own elements of the gradients of far rows to zero.
template <int M>
__device__ __forceinline__ void ClearGradients(const AttentionShape& shape,
                                               const FeatureRows& rows) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  for (int row = g; row < 16 * M; row += 8) {
    float* gradient = rows.gradients + row * rows.gradient_size + 2 * t;
    for (int i = 0; i < shape.far_dim; i += 8) gradient[i] = gradient[i + 1] = 0;
  }
}

// Writes the gradients of a warp's rows. Near gradients are added to the far ones if the rows are
// the same.
template <int D, int M>
__device__ __forceinline__ void StoreGradients(const TrainingShape& shape, const RowTile& tile,
                                               int row, const Backward& backward,
                                               const FeatureRows& rows,
                                               const float (&near)[M][NearWidth<D>() / 8][4]) {
  const int t = threadIdx.x % 4;
  ForRows<M>([&](int m, int half, int r) {
    if (row + r >= tile.count) return;
    const int64_t token = tile.token + row + r;
    float* gradient = rows.gradients + r * rows.gradient_size + 2 * t;
    const int64_t near_row = backward.own_near ? OffsetOf(shape, backward.near, token) + 2 * t : 0;
#pragma unroll
    for (int n = 0; n < NearWidth<D>() / 8; ++n) {
      if (8 * n >= shape.attention.near_dim) continue;
      const float low = near[m][n][2 * half], high = near[m][n][2 * half + 1];
      if (backward.own_near) {
        StorePair(backward.near, near_row + 8 * n, low, high);
      } else {
        gradient[8 * n] += low;
        gradient[8 * n + 1] += high;
      }
    }
    if (shape.attention.far_dim == 0) return;
    const int64_t far_row = OffsetOf(shape, backward.far, token) + 2 * t;
    for (int i = 0; i < shape.attention.far_dim; i += 8) {
      StorePair(backward.far, far_row + i, gradient[i], gradient[i + 1]);
    }
  });
}

// What both gradient kernels share: a tile of rows in shared memory (complete after the first
// barrier of ForParts), the warp's rows, and the copies of states and near rows.
template <int D>
struct GradientRun {
  static constexpr int M = GradientTiles<D>(), kRows = GradientRows<D>();
  const TrainingShape& shape;
  const Backward& backward;
  const RowTile& tile;
  const GradientMemory<D> memory;
  const int row;  // first row of the warp in the tile
  const FeatureRows feature_rows;
  const int64_t block_token;  // first token of the block

  __device__ GradientRun(const TrainingShape& shape_, const Backward& backward_,
                         const RowTile& tile_, const TokenRows& near, const TokenRows& far,
                         const TokenRows& duals)
      : shape(shape_),
        backward(backward_),
        tile(tile_),
        memory(shape.attention),
        row(static_cast<int>(threadIdx.x) / kWarpSize * 16 * M),
        feature_rows(memory.feature_rows(row)),
        block_token(tile.token - tile.block_offset) {
    const AttentionShape& sizes = shape.attention;
    CopyTile(shape, tile, near, sizes.near_dim, kRows, memory.near, kTileThreads);
    if (sizes.far_dim > 0) {
      CopyTile(shape, tile, far, sizes.far_dim, kRows, memory.far, kTileThreads);
    }
    CopyTile(shape, tile, duals, D, kRows, memory.duals, kTileThreads);
    ClearGradients<M>(sizes, feature_rows);
  }

  __device__ int FarParts() const {
    return (shape.attention.features + kPartFeatures - 1) / kPartFeatures;
  }
  __device__ PartBuffer<D> buffer(int stage) const { return memory.buffer(shape.attention, stage); }
  __device__ void LoadFar(int part, int stage) const {
    const uint8_t* state = backward.snapshots.Of(shape, tile.block);
    LoadFarPart<D>(shape.attention, reinterpret_cast<const Bf16*>(state),
                   reinterpret_cast<const float*>(state + backward.snapshots.z), part,
                   buffer(stage), threadIdx.x, kTileThreads);
  }
  // Starts the copy of rows [first, first + 64) of the block, which has `count` rows.
  __device__ void LoadNear(const TokenRows& keys, const TokenRows& values, int first, int count,
                           int stage) const {
    LoadNearPart<D>(shape.attention, RowsFrom(shape, keys, block_token),
                    RowsFrom(shape, values, block_token), first, count, buffer(stage), threadIdx.x,
                    kTileThreads);
  }
};

// blockIdx: queries of a block, head.
template <int D>
__global__ void __launch_bounds__(kTileThreads)
    QueryGradients(TrainingShape shape, Backward backward) {
  constexpr int M = GradientTiles<D>();
  const AttentionShape& sizes = shape.attention;
  const RowTile tile(shape, GradientRows<D>());
  if (tile.count <= 0) return;
  const GradientRun<D> run(shape, backward, tile, shape.near_q, shape.far_q, backward.a);
  float scalars[M][2];
  ForRows<M>([&](int m, int half, int r) {
    const int64_t token = blockIdx.y * shape.tokens + tile.token + run.row + r;
    scalars[m][half] = run.row + r < tile.count ? backward.e[token] : 0.0f;
  });

  const int far_parts = tile.block > 0 ? run.FarParts() : 0;
  const int seen = tile.block_offset + tile.count;
  const int64_t parts = far_parts + (seen + kPartKeysTensor - 1) / kPartKeysTensor;
  const auto first_key = [&](int64_t part) {
    return static_cast<int>(part - far_parts) * kPartKeysTensor;
  };
  const auto load = [&](int64_t part, int stage) {
    if (part < far_parts) {
      run.LoadFar(static_cast<int>(part), stage);
    } else {
      run.LoadNear(shape.near_k, shape.v, first_key(part), seen, stage);
    }
  };
  float near[M][NearWidth<D>() / 8][4] = {};
  load(0, 0);
  ForParts(parts, load, [&](int64_t part, int stage) {
    const PartBuffer<D> buffer = run.buffer(stage);
    if (part < far_parts) {
      AddFeatureGradients<D, M>(sizes, static_cast<int>(part), run.feature_rows, scalars, buffer);
    } else {
      const int first = first_key(part);
      const KeyLimits limits{tile.block_offset + run.row - first + 1,
                             min(kPartKeysTensor, seen - first), true};
      AddQueryGradients<D, M>(sizes, run.memory.near_rows(run.row), scalars, buffer, limits, near);
    }
  });
  StoreGradients<D, M>(shape, tile, run.row, backward, run.feature_rows, near);
}

// blockIdx: keys of a block, head.
template <int D>
__global__ void __launch_bounds__(kTileThreads)
    KeyGradients(TrainingShape shape, Backward backward) {
  constexpr int M = GradientTiles<D>();
  const AttentionShape& sizes = shape.attention;
  const RowTile tile(shape, GradientRows<D>());
  if (tile.count <= 0) return;
  const GradientRun<D> run(shape, backward, tile, shape.near_k, shape.far_k, shape.v);
  const int thread = threadIdx.x;
  float ones[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) ones[m][0] = ones[m][1] = 1;

  const int far_parts = tile.block + 1 < shape.blocks ? run.FarParts() : 0;
  const int first_near = tile.block_offset / kPartKeysTensor;
  const int64_t parts =
      far_parts + (tile.block_tokens + kPartKeysTensor - 1) / kPartKeysTensor - first_near;
  const auto first_query = [&](int64_t part) {
    return (first_near + static_cast<int>(part - far_parts)) * kPartKeysTensor;
  };
  const auto load = [&](int64_t part, int stage) {
    if (part < far_parts) return run.LoadFar(static_cast<int>(part), stage);
    const int first = first_query(part);
    run.LoadNear(shape.near_q, backward.a, first, tile.block_tokens, stage);
    if (thread < kPartKeysTensor) {
      const int64_t query = blockIdx.y * shape.tokens + run.block_token + first + thread;
      run.memory.scalars(sizes, stage)[thread] =
          first + thread < tile.block_tokens ? backward.e[query] : 0.0f;
    }
  };
  float near[M][NearWidth<D>() / 8][4] = {};
  RowSums<D, M> total;  // its values are the gradients of values; its weights are not used
  total.Clear();
  load(0, 0);
  ForParts(parts, load, [&](int64_t part, int stage) {
    const PartBuffer<D> buffer = run.buffer(stage);
    if (part < far_parts) {
      AddFarPart<D, M>(sizes, static_cast<int>(part), run.feature_rows.x, run.memory.far_size,
                       buffer, &total);
      AddFeatureGradients<D, M>(sizes, static_cast<int>(part), run.feature_rows, ones, buffer);
    } else {
      const int first = first_query(part);
      AddKeyGradients<D, M>(sizes, run.memory.near_rows(run.row), run.memory.scalars(sizes, stage),
                            buffer, tile.block_offset + run.row - first,
                            min(kPartKeysTensor, tile.block_tokens - first), near, total.values);
    }
  });
  StoreGradients<D, M>(shape, tile, run.row, backward, run.feature_rows, near);

  ForRows<M>([&](int m, int half, int r) {
    if (run.row + r >= tile.count) return;
    const int64_t v_row = OffsetOf(shape, backward.v, tile.token + run.row + r) + 2 * (thread % 4);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      StorePair(backward.v, v_row + 8 * n, total.values[m][n][2 * half],
                total.values[m][n][2 * half + 1]);
    }
  });
}

}  // namespace polysketch::cuda
