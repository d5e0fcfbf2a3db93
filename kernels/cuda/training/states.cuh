// Far states at the starts of all blocks of a sequence. A thread block walks the blocks in order
// and keeps its part of the state in registers. Each block is summed from zero and added once, as
// in serving, and the state that the next block reads is written to a snapshot.
//
// The forward pass and the gradients of queries use S = sum phi(k) [v, 1] over earlier blocks. The
// gradients of keys and values use R = sum phi(q) [a, e] over later blocks (gradients.cuh): the
// same walk backwards. With a decay gate both read what is left at the boundary between the reader's
// block and the earlier, or later, ones: in the walk forwards a token has the factor e^(G_b - G_s), in
// the walk backwards e^(G_t), and a block leaves e^(G_b) of the state of the blocks before it.
//
// If there are few heads, the blocks are cut into ranges: a first pass sums every range, and in the
// second pass each range starts from the sum of the ranges before it.
#pragma once

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/training/shape.cuh"

namespace polysketch::cuda {

// Stores the state before a chunk as the queries of its first block read it. blockIdx: pieces, head.
template <int D>
__global__ void RoundState(TrainingShape shape, Snapshots snapshots, ChunkStates chunk) {
  const float* before = chunk.before + chunk.Offset<D>(shape);
  const int64_t z_offset = static_cast<int64_t>(shape.attention.features) * D;
  const int64_t size = z_offset + shape.attention.features;
  uint8_t* snapshot = snapshots.Of(shape, 0);
  auto* S = reinterpret_cast<Bf16*>(snapshot);
  auto* z = reinterpret_cast<float*>(snapshot + snapshots.z);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    if (i < z_offset) {
      S[i] = UpperPlane(FloatBits(before[i]));
    } else {
      z[i - z_offset] = before[i];
    }
  }
}

struct Walk {
  TokenRows rows, values;          // the walk folds phi(rows) values^T
  const float* weights = nullptr;  // [group][tokens]: the last column; null: ones
  bool reverse = false;
  bool sums_only = false;  // first pass over ranges
  int ranges = 1;
  float* partials = nullptr;  // [group][ranges][features][D + 1]
  Snapshots snapshots;
  ChunkStates chunk;
};

// 16-feature tiles of a warp, which has two sums of a tile in registers: the block's and the
// state's.
template <int D>
constexpr int WalkTiles() {
  return D <= 64 ? 2 : 1;
}
template <int D>
constexpr int WalkFeatures() {
  return kFoldThreads / kWarpSize * 16 * WalkTiles<D>();
}

// Tokens of a part: a part costs copies to be set up and two barriers.
template <int D>
constexpr int kWalkTokens = D <= 64 ? 128 : 64;

template <int D, bool GATED>
__host__ __device__ constexpr int64_t WalkStage(int far_dim) {
  const int floats = GATED ? 2 : 1;  // the weight, the factor
  return kWalkTokens<D> *
         (static_cast<int64_t>(PadTo16(far_dim) + D + 2 * kRowPad) * 2 + floats * 4);
}

// The factors of a part's tokens, in shared memory.
struct TokenFactors {
  const float* factors;
  __device__ __forceinline__ uint32_t Pair(uint32_t pair, int token) const {
    return ScalePair(pair, factors[token], factors[token + 1]);
  }
};

// What the blocks of a range leave of the state before them, in a walk of several ranges.
__device__ __forceinline__ float RangeDecay(const TrainingShape& shape, const Walk& walk,
                                            int range) {
  const int64_t steps = shape.blocks - 1, per_range = (steps + walk.ranges - 1) / walk.ranges;
  const int64_t end = (range + 1) * per_range;
  float sum = 0;
  for (int64_t step = range * per_range; step < end && step < steps; ++step) {
    sum += shape.LastDecaySum(walk.reverse ? shape.blocks - 1 - step : step);
  }
  return expf(sum);
}

// total = kept * total + block.
template <int D, int M>
__device__ __forceinline__ void DecayState(float kept, const RowSums<D, M>& block,
                                           RowSums<D, M>* total) {
  ForRows<M>([&](int m, int half, int) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        total->values[m][n][i] = fmaf(kept, total->values[m][n][i], block.values[m][n][i]);
      }
    }
    float& weight = total->weights[m][2 * half];
    weight = fmaf(kept, weight, block.weights[m][2 * half]);
  });
}

// CopyRows of attention_parts.cuh for the tokens of a part and rows of WIDTH elements: a thread
// copies the same columns of rows that are `kStep` apart.
template <int D, int WIDTH>
__device__ __forceinline__ void CopyPart(const RowArray& from, int valid, Bf16* to) {
  constexpr int kStep = kFoldThreads / (WIDTH / 8);
  const int first = threadIdx.x / (WIDTH / 8), column = threadIdx.x % (WIDTH / 8) * 8;
  const Bf16* source = from.row(first) + column;
  Bf16* target = to + first * (WIDTH + kRowPad) + column;
#pragma unroll
  for (int row = 0; row < kWalkTokens<D>; row += kStep) {
    const bool inside = first + row < valid;
    CopyAsync16(target + row * (WIDTH + kRowPad), inside ? source : from.data, inside);
    source += kStep * from.stride;
  }
}

// Visits a warp's sums and their offsets in [features][D] and [features].
template <int D, int M, typename VisitPair, typename VisitWeight>
__device__ __forceinline__ void ForStatePairs(int feature, RowSums<D, M>* sums,
                                              const VisitPair& pair, const VisitWeight& weight) {
  const int t = threadIdx.x % 4;
  ForRows<M>([&](int m, int half, int row) {
    const int64_t f = feature + row;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      pair(f * D + 8 * n + 2 * t, &sums->values[m][n][2 * half], &sums->values[m][n][2 * half + 1]);
    }
    if (t == 0) weight(f, &sums->weights[m][2 * half]);
  });
}

// blockIdx: features, head, range. The number of features is a multiple of a warp's. CHUNK: from a
// state or to one, in one range, not reverse. GATED: with a decay gate.
template <int D, bool CHUNK, bool GATED>
__global__ void __launch_bounds__(kFoldThreads) WalkStates(TrainingShape shape, Walk walk) {
  constexpr int M = WalkTiles<D>();
  const AttentionShape& sizes = shape.attention;
  const int thread = threadIdx.x, t = thread % 4;
  const int feature = blockIdx.x * WalkFeatures<D>() + thread / kWarpSize * 16 * M;
  const bool active = feature < sizes.features;
  const int64_t size = static_cast<int64_t>(sizes.features) * (D + 1);
  const int64_t z_offset = static_cast<int64_t>(sizes.features) * D;
  float* partials = walk.partials + blockIdx.y * walk.ranges * size;

  RowSums<D, M> total, sums;
  total.Clear();
  if (!walk.sums_only && active) {
    for (int range = 0; range < static_cast<int>(blockIdx.z); ++range) {
      const float* partial = partials + range * size;
      const float kept = GATED ? RangeDecay(shape, walk, range) : 1.0f;
      const auto add = [&](float x, float* to) { *to = GATED ? fmaf(kept, *to, x) : *to + x; };
      ForStatePairs<D, M>(
          feature, &total,
          [&](int64_t at, float* low, float* high) {
            add(partial[at], low);
            add(partial[at + 1], high);
          },
          [&](int64_t f, float* sum) { add(partial[z_offset + f], sum); });
    }
  }
  if (CHUNK && walk.chunk.before != nullptr && active) {
    const float* before = walk.chunk.before + walk.chunk.Offset<D>(shape);
    ForStatePairs<D, M>(
        feature, &total,
        [&](int64_t at, float* low, float* high) {
          *low = before[at];
          *high = before[at + 1];
        },
        [&](int64_t f, float* sum) { *sum = before[z_offset + f]; });
  }

  // The last block of a walk is folded for the final state alone: no block reads the sum.
  const int64_t steps = shape.blocks - (CHUNK && walk.chunk.after != nullptr ? 0 : 1);
  const int64_t per_range = (steps + walk.ranges - 1) / walk.ranges;
  const int64_t first_step = blockIdx.z * per_range;
  const int64_t end_step = first_step + per_range < steps ? first_step + per_range : steps;
  const int64_t per_block = (sizes.block + kWalkTokens<D> - 1) / kWalkTokens<D>;
  const int64_t parts = end_step > first_step ? (end_step - first_step) * per_block : 0;
  // Parts of a range fit 32 bits, which divide faster.
  const auto block_of = [&](int64_t part) {
    const int64_t step =
        first_step + static_cast<uint32_t>(part) / static_cast<uint32_t>(per_block);
    return walk.reverse ? shape.blocks - 1 - step : step;
  };
  const auto place_of = [&](int64_t part) {  // in its block
    return static_cast<int>(static_cast<uint32_t>(part) % static_cast<uint32_t>(per_block));
  };
  const int row_dim = PadTo16(sizes.far_dim), row_size = row_dim + kRowPad;
  auto* shared = SharedMemory<uint8_t>();
  const auto stage_rows = [&](int stage) {
    return reinterpret_cast<Bf16*>(shared + stage * WalkStage<D, GATED>(sizes.far_dim));
  };
  const auto stage_weights = [&](Bf16* rows) {
    return reinterpret_cast<float*>(rows + kWalkTokens<D> * (row_size + D + kRowPad));
  };
  const auto load = [&](int64_t part, int stage) {
    const int64_t block = block_of(part);
    const int first = place_of(part) * kWalkTokens<D>;
    const int64_t token = block * sizes.block + first;
    const int count = shape.BlockTokens(block) - first;
    const RowArray rows = RowsFrom(shape, walk.rows, token);
    const RowArray values = RowsFrom(shape, walk.values, token);
    Bf16* to = stage_rows(stage);
    if (sizes.far_dim == 32) {
      CopyPart<D, 32>(rows, count, to);
    } else {
      CopyRows(rows.data, rows.stride, sizes.far_dim, count, to, row_dim, kWalkTokens<D>, thread,
               kFoldThreads);
    }
    CopyPart<D, D>(values, count, to + kWalkTokens<D> * row_size);
    if (thread < kWalkTokens<D>) {
      float weight = 0;
      if (thread < count) {
        weight = walk.weights == nullptr ? 1.0f
                                         : walk.weights[blockIdx.y * shape.tokens + token + thread];
      }
      stage_weights(to)[thread] = weight;
      if constexpr (GATED) {
        float factor = 0;
        if (thread < count) {
          const float sum = *shape.DecaySums(token + thread);
          factor = FastExp(walk.reverse ? sum : shape.LastDecaySum(block) - sum);
        }
        stage_weights(to)[kWalkTokens<D> + thread] = factor;
      }
    }
  };

  int I = 0, J = 0;
  if (active && sizes.tiles > 0) TilesOf(feature / 64, sizes.tiles, &I, &J);
  if (parts > 0) load(0, 0);
  ForParts(parts, load, [&](int64_t part, int stage) {
    if (!active) return;
    Bf16* rows = stage_rows(stage);
    const Bf16* values = rows + kWalkTokens<D> * row_size;
    const float* weights = stage_weights(rows) + 2 * t;
    const int64_t block = block_of(part);
    const int i = place_of(part);
    const int tokens = min(kWalkTokens<D>, shape.BlockTokens(block) - i * kWalkTokens<D>);
    if (i == 0) sums.Clear();
#pragma unroll 2
    for (int token = 0; token < tokens; token += 16) {
      uint32_t a[M][4];
      if constexpr (GATED) {
        const TokenFactors factors{stage_weights(rows) + kWalkTokens<D>};
        FeatureColumns<M>(sizes, feature, I, J, rows, row_size, token, factors, a);
      } else {
        FeatureColumns<M>(sizes, feature, I, J, rows, row_size, token, NoDecay(), a);
      }
      MultiplyStep<D, M>(a, values, token, WeightPair(weights + token),
                         WeightPair(weights + token + 8), &sums);
    }
    if (i + 1 < per_block) return;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      sums.weights[m][0] += sums.weights[m][1];
      sums.weights[m][2] += sums.weights[m][3];
    }
    if constexpr (GATED) {
      DecayState(expf(shape.LastDecaySum(block)), sums, &total);
    } else {
      Merge<D, M>(false, sums, &total);
    }
    if (walk.sums_only || (CHUNK && block + 1 == shape.blocks)) return;
    uint8_t* snapshot = walk.snapshots.Of(shape, walk.reverse ? block - 1 : block + 1);
    auto* z = reinterpret_cast<float*>(snapshot + walk.snapshots.z);
    ForStatePairs<D, M>(
        feature, &total,
        [&](int64_t at, const float* low, const float* high) {
          const uint32_t upper = UpperPlane(FloatBits(*high));
          *reinterpret_cast<uint32_t*>(reinterpret_cast<Bf16*>(snapshot) + at) =
              upper << 16 | UpperPlane(FloatBits(*low));
        },
        [&](int64_t f, const float* sum) { z[f] = *sum; });
  });

  if ((CHUNK ? walk.chunk.after != nullptr : walk.sums_only) && active) {
    float* partial =
        CHUNK ? walk.chunk.after + walk.chunk.Offset<D>(shape) : partials + blockIdx.z * size;
    ForStatePairs<D, M>(
        feature, &total,
        [&](int64_t at, const float* low, const float* high) {
          partial[at] = *low;
          partial[at + 1] = *high;
        },
        [&](int64_t f, const float* sum) { partial[z_offset + f] = *sum; });
  }
}

}  // namespace polysketch::cuda
