// The backward pass of training. ScaleCotangents computes a and e of every query. QueryGradients
// reads the states of earlier blocks and KeyGradients the states of later blocks (states.cuh); both
// process far and near parts of a tile of rows (gradient_parts.cuh). GATED: with a decay gate.
//
// The gradient of the log decay of token u is the sum of c_ts = w[t,s] dw[t,s] over s < u <= t, which
// is that over all t >= u of sum_s c_ts (of token t as a query) less sum_s' c_s't (as a key). Weights
// are homogeneous in both: the sums are q . dq / p + x . dx / f and k . dk / p + y . dy / f, with the
// gradients of near rows (power p) and of far rows (power f). Errors of dw are the same in both, so
// those of pairs of later tokens cancel; -c e_t, which the first sum equals, would not have them.
#pragma once

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/training/gradient_parts.cuh"
#include "kernels/cuda/training/shape.cuh"

namespace polysketch::cuda {

constexpr int kScaleThreads = 256;

struct Backward {
  TokenRows a;               // [group][tokens][D]
  const float* e = nullptr;  // [group][tokens]
  Snapshots snapshots;       // S for queries, R for keys
  OutputRows near, far, v;   // gradients; near is not written if the near rows are the far rows
  bool own_near = false;     // whether the near rows differ from the far rows
  // Of the gradients of the log decays, what each token adds as a query, less what it adds as a key:
  // [group][tokens]; with a decay gate.
  float* decay_terms = nullptr;
};

// Eight 16-bit floats.
struct alignas(16) HalfPairs {
  uint32_t pair[4];
};

template <int D>
constexpr int ScaleTokens() {  // of a block of ScaleCotangents
  return kScaleThreads / (D / 8);
}

// a = g / D and e = -(g . out) / D. blockIdx: tokens, head. A lane has 8 elements of a token.
template <int D>
__global__ void __launch_bounds__(kScaleThreads)
    ScaleCotangents(TrainingShape shape, TokenRows g, OutputRows out, const float* denominators,
                    Bf16* a, float* e) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * ScaleTokens<D>() + threadIdx.x / (D / 8);
  const int column = threadIdx.x % (D / 8) * 8;
  const bool inside = token < shape.tokens;
  const int64_t from = inside ? token : 0;  // all lanes take part in the sum
  const float inverse = 1.0f / denominators[shape.head() * shape.tokens + from];
  const auto row = *reinterpret_cast<const HalfPairs*>(RowsFrom(shape, g, from).data + column);
  const int64_t out_row = OffsetOf(shape, out, from) + column;
  float dot = 0;
  HalfPairs scaled;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = WidenBf16(static_cast<Bf16>(row.pair[i]));
    const float high = WidenBf16(static_cast<Bf16>(row.pair[i] >> 16));
    const Pair of_out = LoadPair(out, out_row + 2 * i);
    dot = fmaf(low, of_out.low, dot);
    dot = fmaf(high, of_out.high, dot);
    scaled.pair[i] = PackBf16(low * inverse, high * inverse);
  }
#pragma unroll
  for (int distance = D / 16; distance > 0; distance /= 2) {
    dot += __shfl_xor_sync(kFullWarp, dot, distance);
  }
  if (!inside) return;
  const int64_t in_group = blockIdx.y * shape.tokens + token;
  *reinterpret_cast<HalfPairs*>(a + in_group * D + column) = scaled;
  if (column == 0) e[in_group] = -dot * inverse;
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

// Multiplies the gradients of far rows by a factor of each row.
template <int M, typename FactorOf>
__device__ __forceinline__ void ScaleGradients(const AttentionShape& shape, const FeatureRows& rows,
                                               const FactorOf& factor_of) {
  ForRows<M>([&](int, int, int r) {
    const float factor = factor_of(r);
    float* gradient = rows.gradients + r * rows.gradient_size + 2 * (threadIdx.x % 4);
    for (int i = 0; i < shape.far_dim; i += 8) {
      gradient[i] *= factor;
      gradient[i + 1] *= factor;
    }
  });
}

// The term of a warp's rows, before StoreGradients. KEYS: subtracts it from that of the queries.
template <int D, int M, bool KEYS, int N>
__device__ __forceinline__ void StoreDecayTerms(const TrainingShape& shape, const RowTile& tile,
                                                int row, const Backward& backward,
                                                const NearRows& near_rows, const FeatureRows& rows,
                                                const float (&near)[M][N][4]) {
  const AttentionShape& sizes = shape.attention;
  const int t = threadIdx.x % 4;
  const auto dot = [](const Bf16* x, float low, float high, float sum) {
    return fmaf(WidenBf16(x[1]), high, fmaf(WidenBf16(x[0]), low, sum));
  };
  ForRows<M>([&](int m, int half, int r) {
    const Bf16* near_row = near_rows.rows + r * near_rows.row_size + 2 * t;
    float of_near = 0, of_far = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (8 * n >= sizes.near_dim) continue;
      of_near = dot(near_row + 8 * n, near[m][n][2 * half], near[m][n][2 * half + 1], of_near);
    }
    const Bf16* far_row = rows.x + r * rows.x_size + 2 * t;
    const float* gradient = rows.gradients + r * rows.gradient_size + 2 * t;
    for (int i = 0; i < sizes.far_dim; i += 8) {
      of_far = dot(far_row + i, gradient[i], gradient[i + 1], of_far);
    }
    const float far_power = sizes.tiles > 0 ? 2 : 1;
    float term = of_near / static_cast<float>(sizes.near_power) + of_far / far_power;
    term += __shfl_xor_sync(kFullWarp, term, 1);
    term += __shfl_xor_sync(kFullWarp, term, 2);
    if (t == 0 && row + r < tile.count) {
      float* out = backward.decay_terms + shape.of_group() * shape.tokens + tile.token + row + r;
      *out = KEYS ? *out - term : term;
    }
  });
}

// Writes the gradients of a warp's rows. Near gradients are added to the far ones if the rows are
// the same.
template <int D, int M, int N>
__device__ __forceinline__ void StoreGradients(const TrainingShape& shape, const RowTile& tile,
                                               int row, const Backward& backward,
                                               const FeatureRows& rows,
                                               const float (&near)[M][N][4]) {
  const int t = threadIdx.x % 4;
  ForRows<M>([&](int m, int half, int r) {
    if (row + r >= tile.count) return;
    const int64_t token = tile.token + row + r;
    float* gradient = rows.gradients + r * rows.gradient_size + 2 * t;
    const int64_t near_row = backward.own_near ? OffsetOf(shape, backward.near, token) + 2 * t : 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
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
template <int D, bool GATED>
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

  __device__ PartBuffer<D> buffer(int stage) const { return memory.buffer(shape.attention, stage); }
  __device__ void LoadFar(int part, int stage) const {
    const uint8_t* state = backward.snapshots.Of(shape, tile.block);
    LoadFarPart<D>(shape.attention, reinterpret_cast<const Bf16*>(state),
                   reinterpret_cast<const float*>(state + backward.snapshots.z), part,
                   buffer(stage), threadIdx.x, kTileThreads);
  }
  // Calls compute(part, buffer) for the parts of the state. They have a loop of their own: the
  // registers of the near sums are free there.
  template <typename Compute>
  __device__ __forceinline__ void ForFarParts(const Compute& compute) const {
    const auto load = [&](int64_t part, int stage) { LoadFar(static_cast<int>(part), stage); };
    load(0, 0);
    ForParts((shape.attention.features + kPartFeatures - 1) / kPartFeatures, load,
             [&](int64_t part, int stage) { compute(static_cast<int>(part), buffer(stage)); });
  }
  // Starts the copy of rows [first, first + 64) of the block, which has `count` rows.
  __device__ void LoadNear(const TokenRows& keys, const TokenRows& values, int first, int count,
                           int stage) const {
    LoadNearPart<D>(shape.attention, RowsFrom(shape, keys, block_token),
                    RowsFrom(shape, values, block_token), first, count, buffer(stage), threadIdx.x,
                    kTileThreads);
    if constexpr (GATED) {
      CopyDecaySums(shape.DecaySums(block_token) + first, count - first, buffer(stage).decay_sums,
                    kPartKeysTensor, static_cast<int>(threadIdx.x), kTileThreads);
    }
  }
  // Calls work(decay) with the factors of the warp's rows and of the part in `stage`.
  template <typename Decay, typename Work>
  __device__ __forceinline__ void WithDecay(int stage, const Work& work) const {
    if constexpr (GATED) {
      work(Decay(row_sums(), tile.count - row, buffer(stage).decay_sums));
    } else {
      work(NoDecay());
    }
  }
  // G of the warp's rows.
  __device__ const float* row_sums() const { return shape.DecaySums(tile.token) + row; }
};

// Kernels with POWER > 0 are for near rows of D elements and this power: loops over them are
// unrolled, and no element asks for its power. POWER = 0 takes every shape, the linear form too.
template <int D, int POWER>
__device__ __forceinline__ TrainingShape Known(TrainingShape shape) {
  if constexpr (POWER > 0) {
    shape.attention.near_dim = D;
    shape.attention.near_power = POWER;
  }
  return shape;
}

// blockIdx: queries of a block, head. WIDTH, here and below: the most columns of near rows.
template <int D, int POWER, bool GATED, int WIDTH = NearWidth<D>()>
__global__ void __launch_bounds__(kTileThreads)
    QueryGradients(TrainingShape any_shape, Backward backward) {
  const TrainingShape shape = Known<D, POWER>(any_shape);
  constexpr int M = GradientTiles<D>();
  const AttentionShape& sizes = shape.attention;
  const RowTile tile(shape, GradientRows<D>());
  if (tile.count <= 0) return;
  const GradientRun<D, GATED> run(shape, backward, tile, shape.near_q, shape.far_q, backward.a);
  float scalars[M][2];
  ForRows<M>([&](int m, int half, int r) {
    const int64_t token = blockIdx.y * shape.tokens + tile.token + run.row + r;
    scalars[m][half] = run.row + r < tile.count ? backward.e[token] : 0.0f;
  });

  float unused[M][D / 8][4];
  if (shape.ReadsState(tile.block)) {
    run.ForFarParts([&](int part, const PartBuffer<D>& buffer) {
      AddFarGradients<D, M, false, POWER == 0>(sizes, part, run.feature_rows, scalars, buffer,
                                               unused);
    });
    if constexpr (GATED) {
      ScaleGradients<M>(sizes, run.feature_rows, [&](int r) {
        return run.row + r < tile.count ? expf(run.row_sums()[r]) : 0.0f;
      });
    }
  }

  const int seen = tile.block_offset + tile.count;
  const auto load = [&](int64_t part, int stage) {
    run.LoadNear(shape.near_k, shape.v, static_cast<int>(part) * kPartKeysTensor, seen, stage);
  };
  float near[M][WIDTH / 8][4] = {};
  load(0, 0);
  ForParts((seen + kPartKeysTensor - 1) / kPartKeysTensor, load, [&](int64_t part, int stage) {
    const int first = static_cast<int>(part) * kPartKeysTensor;
    const KeyLimits limits{tile.block_offset + run.row - first + 1,
                           min(kPartKeysTensor, seen - first), true};
    run.template WithDecay<NearDecay<M>>(stage, [&](const auto& decay) {
      AddQueryGradients<D, M>(sizes, run.memory.near_rows(run.row), scalars, run.buffer(stage),
                              limits, decay, near);
    });
  });
  if constexpr (GATED) {
    StoreDecayTerms<D, M, false>(shape, tile, run.row, backward, run.memory.near_rows(run.row),
                                 run.feature_rows, near);
  }
  StoreGradients<D, M>(shape, tile, run.row, backward, run.feature_rows, near);
}

// blockIdx: keys of a block, head.
template <int D, int POWER, bool GATED, int WIDTH = NearWidth<D>()>
__global__ void __launch_bounds__(kTileThreads)
    KeyGradients(TrainingShape any_shape, Backward backward) {
  const TrainingShape shape = Known<D, POWER>(any_shape);
  constexpr int M = GradientTiles<D>();
  const AttentionShape& sizes = shape.attention;
  const RowTile tile(shape, GradientRows<D>());
  if (tile.count <= 0) return;
  const GradientRun<D, GATED> run(shape, backward, tile, shape.near_k, shape.far_k, shape.v);
  const int thread = threadIdx.x;
  float ones[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) ones[m][0] = ones[m][1] = 1;

  float values[M][D / 8][4] = {};
  if (tile.block + 1 < shape.blocks) {
    run.ForFarParts([&](int part, const PartBuffer<D>& buffer) {
      AddFarGradients<D, M, true, POWER == 0>(sizes, part, run.feature_rows, ones, buffer, values);
    });
    if constexpr (GATED) {
      const float last = shape.DecaySums(run.block_token)[tile.block_tokens - 1];
      const auto factor_of = [&](int r) {
        return run.row + r < tile.count ? expf(last - run.row_sums()[r]) : 0.0f;
      };
      ScaleGradients<M>(sizes, run.feature_rows, factor_of);
      ForRows<M>([&](int m, int half, int r) {
        const float factor = factor_of(r);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          values[m][n][2 * half] *= factor;
          values[m][n][2 * half + 1] *= factor;
        }
      });
    }
  }

  const int first_near = tile.block_offset / kPartKeysTensor;
  const int parts = (tile.block_tokens + kPartKeysTensor - 1) / kPartKeysTensor - first_near;
  const auto load = [&](int64_t part, int stage) {
    const int first = (first_near + static_cast<int>(part)) * kPartKeysTensor;
    run.LoadNear(shape.near_q, backward.a, first, tile.block_tokens, stage);
    if (thread < kPartKeysTensor) {
      const int64_t query = blockIdx.y * shape.tokens + run.block_token + first + thread;
      run.memory.scalars(sizes, stage)[thread] =
          first + thread < tile.block_tokens ? backward.e[query] : 0.0f;
    }
  };
  float near[M][WIDTH / 8][4] = {};
  load(0, 0);
  ForParts(parts, load, [&](int64_t part, int stage) {
    const int first = (first_near + static_cast<int>(part)) * kPartKeysTensor;
    run.template WithDecay<QueryDecay<M>>(stage, [&](const auto& decay) {
      AddKeyGradients<D, M>(sizes, run.memory.near_rows(run.row), run.memory.scalars(sizes, stage),
                            run.buffer(stage), tile.block_offset + run.row - first,
                            min(kPartKeysTensor, tile.block_tokens - first), decay, near, values);
    });
  });
  if constexpr (GATED) {
    StoreDecayTerms<D, M, true>(shape, tile, run.row, backward, run.memory.near_rows(run.row),
                                run.feature_rows, near);
  }
  StoreGradients<D, M>(shape, tile, run.row, backward, run.feature_rows, near);

  ForRows<M>([&](int m, int half, int r) {
    if (run.row + r >= tile.count) return;
    const int64_t v_row = OffsetOf(shape, backward.v, tile.token + run.row + r) + 2 * (thread % 4);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      StorePair(backward.v, v_row + 8 * n, values[m][n][2 * half], values[m][n][2 * half + 1]);
    }
  });
}

}  // namespace polysketch::cuda
