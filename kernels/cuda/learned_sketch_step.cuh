// The rows of a decoding step of the mixed kind, for SketchFewKernel: it rotates and norms the heads
// of queries and keys, sketches them, and stores keys, their sketches and values in the states. So a
// step has one launch for what rope.cu, learned_sketch_fused.cu and StoreTokens
// (attention_state.cuh) do, with the same bits.
#pragma once

#include "kernels/cuda/attention_decay.cuh"
#include "kernels/cuda/planted.h"
#include "kernels/cuda/rotated_heads.cuh"

namespace polysketch::cuda {

// A step of one token of each sequence.
struct SketchStep {
  HeadRows heads;              // of the batch; heads.rows tokens
  NormWeights q_norm, k_norm;  // of the near part
  StoredStep stored;
  const float* log_decay;    // [tokens, kv_heads]; null without a decay gate
  uint16_t *near_q, *far_q;  // [tokens, heads, D] and [.., R]
};

template <int D, int R>
struct StepRows {
  static constexpr int kRows = 16;        // of a tile
  static constexpr int kTileRow = D + 8;  // floats, against bank conflicts
  static constexpr int kLanes =
      D <= kNarrowNorm ? 16 : kWarpSize;  // of a row, as in RopeNormKernel
  static constexpr int64_t kTileBytes = kRows * kTileRow * sizeof(float);
  // Rotated heads of a tile, then the places of the sketches of three tiles: while warps still store
  // those of one, others load the heads two tiles further.
  static constexpr int kTiles = 3;
  static constexpr int64_t kShared = kTileBytes + kTiles * kRows * sizeof(uint16_t*);
  SketchStep step;
  int64_t count;      // heads of all tokens
  Divisor per_token;  // heads of one

  // Of tile `number` in the thread block.
  static __device__ __forceinline__ uint16_t** Places(uint8_t* shared, int number) {
    const int tile = number % (PS_PLANTED(SKETCH_PLACES) ? 2 : kTiles);
    return reinterpret_cast<uint16_t**>(shared + kTileBytes) + tile * kRows;
  }

  __device__ __forceinline__ void Load(int64_t row0, int number, uint8_t* shared,
                                       float (&tile)[D / 8][4]) const {
    if (row0 >= count) return;
    auto* rotated = reinterpret_cast<float*>(shared);
    if (row0 == 0) ClearCounters(step.stored.counters, step.stored.counter_count);
    constexpr int kAtOnce = SketchThreads() / kLanes;
#pragma unroll
    for (int r = static_cast<int>(threadIdx.x) / kLanes; r < kRows; r += kAtOnce) {
      LoadHead(row0 + r, rotated + r * kTileRow, Places(shared, number) + r);
    }
    if (!PS_PLANTED(SKETCH_ROWS_BARRIER)) __syncthreads();
    const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float2 pair =
            *reinterpret_cast<const float2*>(rotated + (g + 8 * half) * kTileRow + 8 * n + 2 * t);
        tile[n][2 * half] = pair.x;
        tile[n][2 * half + 1] = pair.y;
      }
    }
  }

  __device__ __forceinline__ void Store(int64_t, int row, int number, uint8_t* shared, int column,
                                        float first, float second) const {
    *reinterpret_cast<uint32_t*>(Places(shared, number)[row] + column) = PackBf16(first, second);
  }

 private:
  static constexpr int SketchThreads() { return 2 * (R / 8) * kWarpSize; }

  // Rotates a head, by kLanes lanes; stores it, its norm, the value beside a key, and where its
  // sketch belongs.
  __device__ __forceinline__ void LoadHead(int64_t index, float* rotated, uint16_t** place) const {
    const bool inside = index < count;
    const int at = static_cast<int>(inside ? index : count - 1), token = per_token.Quotient(at);
    const StoreJob& job = step.stored.jobs[token];
    const int head = at - token * per_token.value(), key_head = head - step.heads.heads;
    const bool is_key = key_head >= 0;
    const int64_t m = job.row;
    const float* from = step.heads.qkv + (m * (per_token.value() + step.heads.kv_heads) + head) * D;
    const int i = 4 * static_cast<int>(threadIdx.x % kLanes);
    Quad values[1] = {};
    if (i < D) values[0] = LoadRotated(from, step.heads.cos_sin + m * D, D, i);
    StoreQuad(values[0], i, D, true, rotated);
    NormQuads<kLanes>(D, is_key ? step.k_norm : step.q_norm, true, values);
    if (!inside || i >= D) return;
    const int64_t query = m * step.heads.heads + head;
    const auto in_state = [&](const HeadArray& array, int width) {
      return At<uint16_t>(array, step.stored.layer, key_head) +
             static_cast<int64_t>(job.first) * width;
    };
    uint16_t* near = is_key ? in_state(job.to.near_keys, D) : step.near_q + query * D;
    StoreHalves<true>(values[0], D, near + i);
    if (is_key) {
      StoreHalves<true>(LoadQuad(from + step.heads.kv_heads * D, i, D, true), D,
                        in_state(job.to.values, D) + i);
    }
    if (i != 0) return;
    *place = is_key ? in_state(job.to.far_keys, R) : step.far_q + query * R;
    if (is_key && step.log_decay != nullptr) {
      StoreDecaySum(job, step.stored.layer, key_head,
                    step.log_decay[m * step.heads.kv_heads + key_head]);
    }
  }
};

}  // namespace polysketch::cuda
