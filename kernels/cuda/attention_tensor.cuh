// The tensor core kernels of attention: states of bf16 and of 8-bit numbers, head sizes 32, 64 and 128.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_format.cuh"
#include "kernels/cuda/attention_group.cuh"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_walk.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

constexpr int kTileWarps = 4;
constexpr int kTileThreads = kTileWarps * kWarpSize;

// 16-row tiles of a warp. Two tiles share every fragment of S and of the values; at D = 128 the
// sums of two tiles do not fit into the registers.
template <int D>
constexpr int RowTiles() {
  return D <= 64 ? 2 : 1;
}
template <int D>
constexpr int TileRows() {
  return kTileWarps * 16 * RowTiles<D>();
}

// The parts of a job, in order: far parts; near parts of sinks, then the others up to those of the
// queries. WINDOW, here and below: of a model with a window. Others have no sinks.
template <bool WINDOW>
struct PartList {
  int far, sinks;
  int skipped;  // near parts between those of sinks and the others
  int end;      // the last near part + 1
  __device__ PartList(const AttentionShape& shape, const AttendJob& job, int last_offset)
      : far(job.past != 0 ? (shape.features + kPartFeatures - 1) / kPartFeatures : 0),
        sinks(job.sink_parts),
        skipped(WINDOW ? job.first_part - job.sink_parts : 0),
        end(job.block * shape.block_parts.value() + last_offset / kPartKeysTensor + 1) {}
  __device__ int size() const { return far + end - skipped; }
  // The block and the first key of a near part.
  __device__ void Near(const AttentionShape& shape, int part, int* block, int* first) const {
    int at = part - far;
    if (WINDOW && at >= sinks) at += skipped;
    *block = shape.block_parts.Quotient(at);
    *first = (at - *block * shape.block_parts.value()) * kPartKeysTensor;
  }
};

// kv: the kv head. Format: attention_format.cuh. GATED, here and below: with a decay gate.
template <typename Format, int D, bool GATED, bool WINDOW>
__device__ __forceinline__ void LoadPart(const AttentionShape& shape, const AttendJob& job, int kv,
                                         const PartList<WINDOW>& parts, int part,
                                         const PartBuffer<D>& buffer, int thread, int threads) {
  if (part < parts.far) {
    LoadFarPart<D, Format::kCopy>(shape, At<void>(job.sums, shape.layer, kv),
                                  At<float>(job.weights, shape.layer, kv), part, buffer, thread,
                                  threads);
  } else {
    int block, first;
    parts.Near(shape, part, &block, &first);
    const int count = block < job.block ? shape.block : job.block_offset + job.count;
    const auto array = [&](const HeadArray& place) {
      return Array<uint8_t, WINDOW>(place, job, block, shape.layer, kv);
    };
    if constexpr (Format::kMxCache) {
      LoadMxNearPart<D>(shape, array(job.keys.near_keys), array(job.keys.values), first, count,
                        buffer, thread, threads);
    } else {
      const auto rows = [&](const HeadArray& place, int width) {
        return RowArray{reinterpret_cast<const Bf16*>(array(place)), width};
      };
      LoadNearPart<D>(shape, rows(job.keys.near_keys, shape.near_dim), rows(job.keys.values, D),
                      first, count, buffer, thread, threads);
    }
    if constexpr (GATED) {
      CopyDecaySums(At<float>(job.keys.decay_sums, shape.layer, kv) + first, count - first,
                    buffer.decay_sums, kPartKeysTensor, thread, threads);
    }
  }
}

// G of a job's rows from `row` on.
__device__ __forceinline__ const float* RowDecaySums(const AttentionShape& shape,
                                                     const AttendJob& job, int kv, int row) {
  return At<float>(job.keys.decay_sums, shape.layer, kv) + job.block_offset + row;
}

// Computes a part from zero. row: the warp's first row in the tile.
template <typename Format, int D, int M, bool GATED, bool WINDOW>
__device__ __forceinline__ void ComputePart(const AttentionShape& shape, const AttendJob& job,
                                            const QueryTile& tile, const PartList<WINDOW>& parts,
                                            int part, int row, const Bf16* far_q, int far_size,
                                            const Bf16* near_q, int near_size,
                                            const PartBuffer<D>& buffer, RowSums<D, M>* sums) {
  if (part < parts.far) {
    FarPart<D, M, Format::kCopy>(shape, part, far_q, far_size, buffer, sums);
    if constexpr (WINDOW) ForRows<M>([&](int m, int half, int) { sums->top[m][half] = 0; });
    return;
  }
  int block, first;
  parts.Near(shape, part, &block, &first);
  const auto limits = LimitsOf<WINDOW>(shape, job, tile, row, block, first);
  if constexpr (GATED) {
    const NearDecay<M> decay(RowDecaySums(shape, job, tile.kv, row), job.count - row,
                             buffer.decay_sums, tile.of_token ? 0 : 1);
    NearPart<D, M, Format::kMxCache>(shape, near_q, near_size, buffer, limits, decay, sums);
  } else {
    NearPart<D, M, Format::kMxCache>(shape, near_q, near_size, buffer, limits, NoDecay(), sums);
  }
}

__host__ __device__ inline int64_t QueryBytes(int rows, int far_dim, int near_dim) {
  const int far = far_dim > 0 ? PadTo16(far_dim) + kRowPad : 0;
  return static_cast<int64_t>(rows) * (far + PadTo16(near_dim) + kRowPad) * 2;
}

template <int D>
int64_t TilesShared(int far_dim, int near_dim) {
  return QueryBytes(TileRows<D>(), far_dim, near_dim) + 2 * PartBuffer<D>::Bytes(near_dim);
}

// Far and near queries of a tile in shared memory.
struct Queries {
  Bf16 *far, *near;
  int far_size, near_size;

  // rows: those that there is memory for. Of these the first `stored` are written, zeros after the
  // tile's own.
  __device__ Queries(const AttentionShape& shape, const AttendJob& job, const QueryTile& tile,
                     void* memory, int rows, int stored, int thread, int threads)
      : far(static_cast<Bf16*>(memory)),
        far_size(shape.far_dim > 0 ? PadTo16(shape.far_dim) + kRowPad : 0),
        near_size(PadTo16(shape.near_dim) + kRowPad) {
    near = far + rows * far_size;
    const int64_t first = tile.Row(shape, job, 0), step = tile.Stride(shape);
    const auto store = [&](const float* floats, const Bf16* rounded, int width, Bf16* to,
                           int to_width) {
      const int64_t offset = first * width, stride = step * width;
      if (rounded != nullptr) {
        CopyQueries(rounded + offset, stride, width, tile.rows, to, to_width, stored, thread,
                    threads);
      } else {
        RoundQueries(floats + offset, stride, width, tile.rows, to, to_width, stored, thread,
                     threads);
      }
    };
    if (job.past != 0) {
      store(shape.far_q, shape.rows.far_q, shape.far_dim, far, far_size - kRowPad);
    }
    store(shape.near_q, shape.rows.near_q, shape.near_dim, near, near_size - kRowPad);
  }
};

// Stores the result of a warp's rows, of which `row` is the first in the job.
template <int D, int M>
__device__ __forceinline__ void StoreRows(const AttentionShape& shape, const AttendJob& job,
                                          const QueryTile& tile, int row,
                                          const RowSums<D, M>& total) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  ForRows<M>([&](int m, int half, int r) {
    const float weights = __shfl_sync(kFullWarp, total.weights[m][2 * half], lane - t);
    if (row + r >= job.count) return;
    const float inverse = 1.0f / (shape.stabilizer + weights);
    const int64_t out = tile.Row(shape, job, row + r) * D;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float* pair = total.values[m][n] + 2 * half;
      StoreOutputPair(shape, out + 8 * n + 2 * t, pair[0] * inverse, pair[1] * inverse);
    }
  });
}

// Many rows. blockIdx: job, head. A warp processes all parts of 16 * RowTiles rows.
template <typename Format, int D, bool GATED, bool WINDOW>
__global__ void __launch_bounds__(kTileThreads)
    AttendTiles(AttentionShape shape, const AttendJob* jobs) {
  constexpr int M = RowTiles<D>();
  const AttendJob& job = jobs[blockIdx.x];
  const QueryTile tile(shape, job, blockIdx.y);
  const int kv = tile.kv, thread = threadIdx.x;
  auto* shared = SharedMemory<uint8_t>();
  uint8_t* stages = shared + QueryBytes(TileRows<D>(), shape.far_dim, shape.near_dim);
  const PartList<WINDOW> parts(shape, job, job.block_offset + job.count - 1);
  const auto buffer = [&](int stage) {
    return PartBuffer<D>(stages + stage * PartBuffer<D>::Bytes(shape.near_dim), shape.near_dim);
  };
  const auto load = [&](int64_t part, int stage) {
    LoadPart<Format, D, GATED>(shape, job, kv, parts, static_cast<int>(part), buffer(stage), thread,
                               kTileThreads);
  };
  load(0, 0);
  const Queries queries(shape, job, tile, shared, TileRows<D>(), TileRows<D>(), thread,
                        kTileThreads);

  const int row = thread / kWarpSize * 16 * M;
  const Bf16* far_q = queries.far + row * queries.far_size;
  const Bf16* near_q = queries.near + row * queries.near_size;
  RowSums<D, M> total, sums;
  total.Clear();
  ForParts(parts.size(), load, [&](int64_t part, int stage) {
    ComputePart<Format, D, M, GATED>(shape, job, tile, parts, static_cast<int>(part), row, far_q,
                                     queries.far_size, near_q, queries.near_size, buffer(stage),
                                     &sums);
    Merge<D, M>(shape.near_power == 0, sums, &total);
    if (GATED && part + 1 == parts.far) {
      DecayFarPart(RowDecaySums(shape, job, kv, row), job.count - row, &total);
    }
    if (WINDOW && part + 1 == parts.far) {
      ScaleFarPart(shape, PositionOf(shape, job, row), &total);
    }
  });

  StoreRows<D, M>(shape, job, tile, row, total);
}

// AttendTiles by warpgroups (attention_group.cuh). May run while the walk stores the states: the
// thread blocks that run first need the states that are stored first. blockIdx: head, job.
template <int NEAR, int POWER, bool GATED>
__global__ void __launch_bounds__(kGroupThreads, 2)
    AttendGroups(AttentionShape shape, const AttendJob* jobs, WalkProgress progress) {
  const AttendJob& job = jobs[blockIdx.y];
  const int head = blockIdx.x, kv = KvHead(shape, head), layer = shape.layer;
  const GroupMemory memory(SharedMemory<uint8_t>(), shape.far_dim);
  const GroupRows rows{At<uint8_t>(job.sums, layer, kv),
                       {At<Bf16>(job.keys.near_keys, layer, kv), NEAR},
                       {At<Bf16>(job.keys.values, layer, kv), 64},
                       shape.tiles,
                       shape.features,
                       job.past != 0,
                       job.block_offset,
                       job.count,
                       shape.stabilizer,
                       GATED ? At<float>(job.keys.decay_sums, layer, kv) : nullptr};
  GroupAttention<NEAR, POWER, GATED> attention(rows, memory);
  if (job.walk >= 0) progress.Await(job.walk, kv, job.stored);
  __syncthreads();
  attention.Begin();
  const int64_t first = static_cast<int64_t>(job.row) * shape.heads + head;
  for (int i = threadIdx.x; i < kGroupRows * NEAR / 8; i += kGroupThreads) {
    const int row = i / (NEAR / 8), chunk = i % (NEAR / 8);
    const int64_t from = (first + static_cast<int64_t>(row) * shape.heads) * NEAR + 8 * chunk;
    uint4 pairs{};
    if (row < rows.count) {
      pairs = shape.rows.near_q != nullptr
                  ? *reinterpret_cast<const uint4*>(shape.rows.near_q + from)
                  : RoundEight(shape.near_q + from);
    }
    memory.StoreNear(row, chunk, pairs);
  }
  const int quads = shape.far_dim / 4;
  for (RowPieces at(quads, static_cast<int>(threadIdx.x), kGroupThreads);
       rows.past && at.row < kGroupRows; at.Next()) {
    const int row = at.row, quad = at.piece;
    const int64_t from =
        (first + static_cast<int64_t>(row) * shape.heads) * shape.far_dim + 4 * quad;
    uint2 pairs{};
    if (row < rows.count) {
      pairs = shape.rows.far_q != nullptr ? *reinterpret_cast<const uint2*>(shape.rows.far_q + from)
                                          : RoundFour(shape.far_q + from);
    }
    memory.StoreFar(row, quad, pairs);
  }
  attention.Run(
      [&](int row, int column, float low, float high) {
        StoreOutputPair(shape, (first + static_cast<int64_t>(row) * shape.heads) * 64 + column, low,
                        high);
      },
      [](int, float) {});
  // The kernels after this one follow the walk too: the last thread block waits for its end.
  if (blockIdx.y + 1 == gridDim.y && blockIdx.x + 1 == gridDim.x) AwaitLastKernel();
}

constexpr int kFoldThreads = 128;
constexpr int kFoldTokens = 64;

template <int D, bool GATED>
int64_t FoldShared(int far_dim) {
  const int64_t columns = PadTo16(far_dim) + D + 2 * kRowPad + (GATED ? 2 : 0);
  return 2 * kFoldTokens * columns * 2;
}

// Fragments of M 16-row tiles of phi^T: features from `feature` on (a multiple of 16 * M) of tokens
// `token` to token + 15 of k_rows, `key_size` elements apart. I, J: the tiles of the feature, if
// features are products. decay: NoDecay or KeyDecay, which scales x_j, or features that are no
// products.
template <int M, typename Decay>
__device__ __forceinline__ void FeatureColumns(const AttentionShape& shape, int feature, int I,
                                               int J, const Bf16* k_rows, int key_size, int token,
                                               [[maybe_unused]] const Decay& decay,
                                               uint32_t (&a)[M][4]) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  if (shape.tiles > 0) {
    const int i_first = feature % 64 / 8;  // within tile I
    uint32_t x[4];  // x_i of tokens 0-7, 8-15; x_j of the same; i, j = lane / 4
    const int tile = lane < 16 ? I : J;
    LoadMatrix4T(x, k_rows + (token + lane % 16) * key_size + 8 * tile);
    if constexpr (!std::is_same_v<Decay, NoDecay>) {
      x[2] = decay.Pair(x[2], token + 2 * t);
      x[3] = decay.Pair(x[3], token + 8 + 2 * t);
    }
    ForRows<M>([&](int m, int half, int) {
      const int from = (i_first + 2 * m + half) * 4 + (PS_PLANTED(SWAPPED_LANE) ? t ^ 1 : t);
      a[m][half] = MultiplyBf16(__shfl_sync(kFullWarp, x[0], from), x[2]);
      a[m][2 + half] = MultiplyBf16(__shfl_sync(kFullWarp, x[1], from), x[3]);
    });
    return;
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    // A feature after the last one is in the padding or the next row; its sum is not stored.
    const int column = min(feature + 16 * m, PadTo16(shape.far_dim) - 16);
    LoadMatrix4T(
        a[m], k_rows + (token + lane / 16 * 8 + lane % 8) * key_size + column + lane / 8 % 2 * 8);
    if constexpr (!std::is_same_v<Decay, NoDecay>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = decay.Pair(a[m][i], token + i / 2 * 8 + 2 * t);
    }
  }
}

// Sums phi(k) [v, 1] over a full block. blockIdx: job, kv head, 128 features. A warp sums 32 features,
// the rows of the product, over the tokens in order.
template <typename Format, int D, bool GATED>
__global__ void __launch_bounds__(kFoldThreads)
    FoldTensor(AttentionShape shape, const FoldJob* jobs, float* partials,
               [[maybe_unused]] float* decays) {
  const FoldJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y, thread = threadIdx.x, lane = thread % kWarpSize;
  const int t = lane % 4;
  const int feature = blockIdx.z * kPartFeatures + thread / kWarpSize * 32;
  const bool active = feature < shape.features;
  const int key_dim = PadTo16(shape.far_dim), key_size = key_dim + kRowPad;
  // With a decay gate a stage also has G of its tokens.
  const int64_t stage_size =
      kFoldTokens * static_cast<int64_t>(key_size + D + kRowPad + (GATED ? 2 : 0));
  auto* shared = SharedMemory<Bf16>();
  const Bf16* keys = At<Bf16>(job.from.far_keys, shape.layer, head);
  const auto* values = At<uint8_t>(job.from.values, shape.layer, head);
  const float* decay_sums = GATED ? At<float>(job.from.decay_sums, shape.layer, head) : nullptr;
  const float last = GATED ? decay_sums[shape.block - 1] : 0.0f;
  if constexpr (GATED) StoreBlockDecay(shape, job, head, decay_sums, decays);
  const auto stage_sums = [&](Bf16* stage) {
    return reinterpret_cast<float*>(stage + kFoldTokens * (key_size + D + kRowPad));
  };
  const auto load = [&](int64_t part, int stage) {
    const int first = static_cast<int>(part) * kFoldTokens;
    Bf16* to = shared + stage * stage_size;
    CopyRows(keys + static_cast<int64_t>(first) * shape.far_dim, shape.far_dim, shape.far_dim,
             shape.block - first, to, key_dim, kFoldTokens, thread, kFoldThreads);
    if constexpr (Format::kMxCache) {
      LoadMxRows<D>({values, shape.block}, first, shape.block - first, kFoldTokens,
                    {to + kFoldTokens * key_size, kFoldTokens}, thread, kFoldThreads);
    } else {
      CopyRows(reinterpret_cast<const Bf16*>(values) + static_cast<int64_t>(first) * D, D, D,
               shape.block - first, to + kFoldTokens * key_size, D, kFoldTokens, thread,
               kFoldThreads);
    }
    if constexpr (GATED) {
      CopyDecaySums(decay_sums + first, shape.block - first, stage_sums(to), kFoldTokens, thread,
                    kFoldThreads);
    }
  };

  int I = 0, J = 0;
  if (shape.tiles > 0 && active) TilesOf(feature / 64, shape.tiles, &I, &J);
  const uint32_t ones = lane / 4 == 0 ? 0x3f803f80u : 0u;
  RowSums<D, 2> sums;
  sums.Clear();
  load(0, 0);
  ForParts((shape.block + kFoldTokens - 1) / kFoldTokens, load, [&](int64_t part, int stage) {
    const Bf16* k_rows = shared + stage * stage_size;
    Bf16* v_rows = shared + stage * stage_size + kFoldTokens * key_size;
    const int tokens = min(kFoldTokens, shape.block - static_cast<int>(part) * kFoldTokens);
    for (int token = 0; token < tokens && active; token += 16) {
      uint32_t a[2][4];
      if constexpr (GATED) {
        const KeyDecay decay{stage_sums(shared + stage * stage_size), last};
        FeatureColumns<2>(shape, feature, I, J, k_rows, key_size, token, decay, a);
      } else {
        FeatureColumns<2>(shape, feature, I, J, k_rows, key_size, token, NoDecay(), a);
      }
      if constexpr (Format::kMxCache) {
        MultiplyStep<D, 2>(a, MxTile<D>(v_rows, kFoldTokens), token, ones, ones, &sums);
      } else {
        MultiplyStep<D, 2>(a, v_rows, token, ones, ones, &sums);
      }
    }
  });
  if (!active) return;

  const int64_t size = static_cast<int64_t>(shape.features) * (D + 1);
  float* out = partials + (job.partial * shape.kv_heads + head) * size;
  float* z = out + static_cast<int64_t>(shape.features) * D;
  ForRows<2>([&](int m, int half, int row) {
    const int f = feature + row;
    if (f >= shape.features) return;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      out[static_cast<int64_t>(f) * D + 8 * n + 2 * t] = sums.values[m][n][2 * half];
      out[static_cast<int64_t>(f) * D + 8 * n + 2 * t + 1] = sums.values[m][n][2 * half + 1];
    }
    if (t == 0) z[f] = sums.weights[m][2 * half];
  });
}

}  // namespace polysketch::cuda
