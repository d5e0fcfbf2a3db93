// Softmax over all keys for many rows, on tensor cores: one pass over the keys, as FlashAttention-2
// makes it. A warp keeps the scores of its rows and of a part's keys in registers, and joins the part
// to its sums a few columns at a time. The bits are those of AttendTiles and AttendParts.
#pragma once

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

constexpr int kSoftmaxTiles = 2;  // 16-row tiles of a warp, at every head size
constexpr int kSoftmaxRows = kTileWarps * 16 * kSoftmaxTiles;
constexpr int kSoftmaxSteps = kPartKeysTensor / 16;  // steps of 16 keys
constexpr int kSoftmaxColumns = 32;  // columns of a part's values that are summed at a time

template <int D>
int64_t SoftmaxShared() {
  return QueryBytes(kSoftmaxRows, 0, D) + 2 * PartBuffer<D>::Bytes(D);
}

template <int M>
__device__ __forceinline__ void ScaleScores(float scale, float (&scores)[kSoftmaxSteps][M][2][4]) {
#pragma unroll
  for (int s = 0; s < kSoftmaxSteps; ++s) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[s][m][0][i] *= scale;
        scores[s][m][1][i] *= scale;
      }
    }
  }
}

// Scores times `scale` of a warp's rows and a part's keys. scores[s][m][n]: keys 16 s + 8 n to + 7.
template <int D, int M>
__device__ __forceinline__ void PartScores(float scale, const Bf16* queries, const Bf16* keys,
                                           float (&scores)[kSoftmaxSteps][M][2][4]) {
  const int lane = threadIdx.x % kWarpSize;
  constexpr int kSize = D + kRowPad;  // of a row
  const Bf16* query_row = queries + lane % 16 * kSize + lane / 16 * 8;
  const Bf16* key_row = keys + (lane / 16 * 8 + lane % 8) * kSize + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) LoadMatrix4(a[m], query_row + 16 * m * kSize + k);
#pragma unroll
    for (int s = 0; s < kSoftmaxSteps; ++s) {
      uint32_t b[4];
      LoadMatrix4(b, key_row + 16 * s * kSize + k);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        MmaBf16(scores[s][m][0], a[m], b[0], b[1]);
        MmaBf16(scores[s][m][1], a[m], b[2], b[3]);
      }
    }
  }
  ScaleScores<M>(scale, scores);
}

// PartScores of a tile of 8-bit numbers.
template <int D, int M>
__device__ __forceinline__ void PartScores(float scale, const Bf16* queries, const MxTile<D>& keys,
                                           float (&scores)[kSoftmaxSteps][M][2][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const Bf16* query_row = queries + lane % 16 * (D + kRowPad) + lane / 16 * 8;
#pragma unroll
  for (int block = 0; block < D / kMxBlock; ++block) {
    uint32_t a[2][M][4];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        LoadMatrix4(a[c][m], query_row + 16 * m * (D + kRowPad) + block * kMxBlock + 16 * c);
      }
    }
#pragma unroll
    for (int s = 0; s < kSoftmaxSteps; ++s) {
      uint32_t b[2][2][2];
      MxKeys<D>(keys, 16 * s, block, b);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
          MmaBf16(scores[s][m][0], a[c][m], b[0][c][0], b[0][c][1]);
          MmaBf16(scores[s][m][1], a[c][m], b[1][c][0], b[1][c][1]);
        }
      }
    }
  }
  ScaleScores<M>(scale, scores);
}

// Calls fn(&score, key) for the scores of row g of half `half` of tile m, of which this lane has 16.
template <int M, typename Fn>
__device__ __forceinline__ void ForScores(float (&scores)[kSoftmaxSteps][M][2][4], int m, int half,
                                          const Fn& fn) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int s = 0; s < kSoftmaxSteps; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fn(&scores[s][m][i / 2][2 * half + i % 2], 16 * s + 8 * (i / 2) + 2 * t + i % 2);
    }
  }
}

// Adds a part to the sums of a warp's rows. queries: the rows, padded, in shared memory. Limits:
// KeyLimits or WindowLimits.
template <int D, int M, bool MX_CACHE, typename Limits>
__device__ __forceinline__ void AddSoftmaxPart(float scale, const Bf16* queries,
                                               const PartBuffer<D>& buffer, const Limits& limits,
                                               RowSums<D, M>* total) {
  const uint32_t ones = threadIdx.x % kWarpSize / 4 == 0 ? 0x3f803f80u : 0u;
  float scores[kSoftmaxSteps][M][2][4] = {};
  PartScores<D, M>(scale, queries, buffer.template Keys<MX_CACHE>(), scores);
  // The weights of -inf are 0.
  if (limits.Common() < kPartKeysTensor) {
    ForRows<M>([&](int m, int half, int) {
      const int limit = limits.Of(m, half);
      ForScores<M>(scores, m, half, [&](float* score, int key) {
        if (key >= limit) *score = -INFINITY;
      });
    });
  }
  if constexpr (std::is_same_v<Limits, WindowLimits>) {
    if (limits.From(16 * M - 1) > 0) {
      ForRows<M>([&](int m, int half, int r) {
        const int from = limits.From(r);
        ForScores<M>(scores, m, half, [&](float* score, int key) {
          if (key < from && key >= limits.sinks) *score = -INFINITY;
        });
      });
    }
  }

  Joint joints[M][2];
  ForRows<M>([&](int m, int half, int) {
    float top = -INFINITY;
    ForScores<M>(scores, m, half, [&](const float* score, int) { top = fmaxf(top, *score); });
    top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
    if (!PS_PLANTED(SOFTMAX_TOP)) top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
    joints[m][half] = Joint(true, total->top[m][half], top);
    total->top[m][half] = joints[m][half].top;
    const float subtracted = top == -INFINITY ? 0.0f : top;
    ForScores<M>(scores, m, half, [&](float* score, int) { *score = expf(*score - subtracted); });
  });

  uint32_t a[kSoftmaxSteps][M][4];
  float weights[M][4] = {};
#pragma unroll
  for (int s = 0; s < kSoftmaxSteps; ++s) {
    Fragments<M>(a[s],
                 [&](int m, int n, int half, int i) { return scores[s][m][n][2 * half + i]; });
#pragma unroll
    for (int m = 0; m < M; ++m) MmaBf16(weights[m], a[s][m], ones, ones);
  }
  ForRows<M>([&](int m, int half, int) {
    float* weight = total->weights[m] + 2 * half;
    *weight = joints[m][half].Add(*weight, weights[m][2 * half]);
  });
  const auto right = buffer.template Values<MX_CACHE>();
#pragma unroll
  for (int column = 0; column < D; column += kSoftmaxColumns) {
    float sums[M][kSoftmaxColumns / 8][4] = {};
#pragma unroll
    for (int s = 0; s < kSoftmaxSteps; ++s) {
      AddProduct<kSoftmaxColumns, M>(a[s], right + column, D, 16 * s, sums);
    }
    ForRows<M>([&](int m, int half, int) {
#pragma unroll
      for (int n = 0; n < kSoftmaxColumns / 8; ++n) {
        float* values = total->values[m][column / 8 + n] + 2 * half;
        values[0] = joints[m][half].Add(values[0], sums[m][n][2 * half]);
        values[1] = joints[m][half].Add(values[1], sums[m][n][2 * half + 1]);
      }
    });
  }
}

// Starts the copy of 64 rows to padded shared rows; those from `valid` on become zero.
template <int D>
__device__ __forceinline__ void CopyPart(const Bf16* from, int valid, Bf16* to, int thread) {
  constexpr int kChunks = D / 8, kRows = kTileThreads / kChunks;  // of a row; copied at a time
  const int row = thread / kChunks, column = thread % kChunks * 8;
#pragma unroll
  for (int i = 0; i < kPartKeysTensor; i += kRows) {
    CopyAsync16(to + (row + i) * (D + kRowPad) + column,
                from + min(row + i, valid - 1) * D + column, row + i < valid);
  }
}

// The parts of keys of a KV cache that a job reads, in order.
template <bool WINDOW>
struct KeyCursor {
  int block = 0;
  int first = 0;  // key of the block
  int sinks;      // parts left before those that are skipped

  __device__ __forceinline__ KeyCursor(const AttentionShape& shape, const AttendJob& job)
      : sinks(job.sink_parts) {
    if (WINDOW && sinks == 0) Skip(shape, job);
  }
  __device__ __forceinline__ void Next(const AttentionShape& shape, const AttendJob& job) {
    first += kPartKeysTensor;
    if (first >= shape.block) {
      first = 0;
      ++block;
    }
    if (WINDOW && sinks > 0 && --sinks == 0) Skip(shape, job);
  }

 private:
  __device__ __forceinline__ void Skip(const AttentionShape& shape, const AttendJob& job) {
    block = shape.block_parts.Quotient(job.first_part);
    first = (job.first_part - block * shape.block_parts.value()) * kPartKeysTensor;
  }
};

// Many rows of kinds with near_power 0. blockIdx: job, head; the last jobs, which may have the most
// keys, first. A warp processes all parts of 16 * kSoftmaxTiles rows.
template <typename Format, int D, bool WINDOW>
__global__ void __launch_bounds__(kTileThreads, 2)
    AttendSoftmax(AttentionShape shape, const AttendJob* jobs) {
  constexpr int M = kSoftmaxTiles;
  const AttendJob job = jobs[gridDim.x - 1 - blockIdx.x];
  const QueryTile tile(shape, job, blockIdx.y);
  const int kv = tile.kv, thread = threadIdx.x;
  const PartList<WINDOW> parts(shape, job, job.block_offset + job.count - 1);
  auto* shared = SharedMemory<uint8_t>();
  const auto buffer = [&](int stage) {
    return PartBuffer<D>(shared + QueryBytes(kSoftmaxRows, 0, D) + stage * PartBuffer<D>::Bytes(D),
                         D);
  };
  // The keys that a block holds for this job, from `at` on.
  const auto held = [&](const KeyCursor<WINDOW>& at) {
    return (at.block < job.block ? shape.block : job.block_offset + job.count) - at.first;
  };
  const auto in_block = [&](const HeadArray& array) {
    return array.base + array.layer_stride * shape.layer + array.head_stride * kv;
  };
  const uint64_t keys = in_block(job.keys.near_keys), values = in_block(job.keys.values);
  KeyCursor<WINDOW> ahead(shape, job);
  const uint8_t* data = job.table[PlaceOf<WINDOW>(job, ahead.block)];
  const auto load = [&](int64_t, int stage) {
    const PartBuffer<D> to = buffer(stage);
    if constexpr (Format::kMxCache) {
      LoadMxNearPart<D>(shape, data + keys, data + values, ahead.first, ahead.first + held(ahead),
                        to, thread, kTileThreads);
    } else {
      const auto rows = [&](uint64_t array) {
        return reinterpret_cast<const Bf16*>(data + array) + ahead.first * D;
      };
      CopyPart<D>(rows(keys), held(ahead), to.keys, thread);
      CopyPart<D>(rows(values), held(ahead), to.values, thread);
    }
    const int block = ahead.block;
    ahead.Next(shape, job);
    // The address of the next block arrives while this part is computed.
    if (ahead.block != block && ahead.block <= job.block)
      data = job.table[PlaceOf<WINDOW>(job, ahead.block)];
  };
  load(0, 0);
  const Queries queries(shape, job, tile, shared, kSoftmaxRows, kSoftmaxRows, thread, kTileThreads);

  const int row = thread / kWarpSize * 16 * M;
  const Bf16* of_warp = queries.near + row * (D + kRowPad);
  RowSums<D, M> total;
  total.Clear();
  KeyCursor<WINDOW> now(shape, job);
  ForParts(parts.size(), load, [&](int64_t, int stage) {
    const auto limits = LimitsOf<WINDOW>(shape, job, tile, row, now.block, now.first);
    now.Next(shape, job);
    if (row >= job.count || limits.End(M) <= 0) return;
    AddSoftmaxPart<D, M, Format::kMxCache>(shape.scale, of_warp, buffer(stage), limits, &total);
  });
  StoreRows<D, M>(shape, job, tile, row, total);
}

}  // namespace polysketch::cuda
