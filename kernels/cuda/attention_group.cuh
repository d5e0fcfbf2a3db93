// The queries of up to 128 rows of a block by two warpgroups, for head size 64 and packed symmetric
// features: the parts of attention_parts.cuh with the same bits, on the products of warpgroup.cuh.
//
// A ring of shared memory holds the parts: 128 features of the state, which one bulk copy brings, or
// 64 keys and their values. Warps wait for a part and for nothing else: the one that is the last to
// have read a part starts the copy of the part that takes its place. So the warpgroups are up to two
// parts apart, and one multiplies while the other makes its operands. The two 16-bit columns of z
// (WeightPair) are rows of the state's tiles, and ones are a column after the values, so that weights
// are columns of the products.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/group_shape.h"
#include "kernels/cuda/planted.h"
#include "kernels/cuda/warpgroup.cuh"

namespace polysketch::cuda {

constexpr int kGroupThreads = 2 * kWarpgroup;
constexpr int kGroupWarps = kGroupThreads / kWarpSize;
constexpr int kGroupRows = 128;
constexpr int kGroupStages = 3;
constexpr int kGroupHeadSize = 64;

// Shared memory of GroupAttention. Swizzled rows begin at multiples of 1,024 bytes.
struct GroupMemory {
  using Ring = CopyRing<kGroupStages>;
  static constexpr int kStage = 2 * kStateTile;                 // elements
  static constexpr int kNear = kGroupRows * kSwizzledRow;       // elements
  static constexpr int kKeys = kPartKeysTensor * kSwizzledRow;  // elements
  static constexpr int64_t kOnesAt =
      (kNear * 2 + Ring::SharedBytes(kStage * 2) + 1023) / 1024 * 1024;

  Bf16* near_q;      // [128][64], swizzled
  Ring ring;         // stages of two tiles of the state, or of keys and values [64][64] and G [64]
  Bf16* ones;        // [16][8], swizzled: ones in the first column
  Bf16* far_q;       // [128][far_dim + pad]
  int32_t* readers;  // [stages]: warps that have read a part
  int far_row;

  static __host__ __device__ int64_t Bytes(int far_dim) {
    return kOnesAt + (16 * kSwizzledRow + kGroupRows * (far_dim + kRowPad)) * 2 +
           kGroupStages * static_cast<int64_t>(sizeof(int32_t));
  }
  __device__ GroupMemory(uint8_t* memory, int far_dim)
      : near_q(reinterpret_cast<Bf16*>(memory)),
        ring(memory + kNear * 2, kStage * 2),
        ones(reinterpret_cast<Bf16*>(memory + kOnesAt)),
        far_q(ones + 16 * kSwizzledRow),
        readers(reinterpret_cast<int32_t*>(far_q + kGroupRows * (far_dim + kRowPad))),
        far_row(far_dim + kRowPad) {}

  // Eight elements of a row, as pairs.
  __device__ __forceinline__ void StoreNear(int row, int chunk, const uint4& pairs) const {
    *reinterpret_cast<uint4*>(near_q + SwizzledChunk(row, chunk)) = pairs;
  }
  // Elements 4 i to 4 i + 3 of a row, as pairs.
  __device__ __forceinline__ void StoreFar(int row, int i, const uint2& pairs) const {
    *reinterpret_cast<uint2*>(far_q + row * far_row + 4 * i) = pairs;
  }
};

// What GroupAttention computes: rows [block_offset, block_offset + count) of a block.
struct GroupRows {
  const uint8_t* state = nullptr;  // GroupStateBytes; not read without a past
  RowArray keys, values;           // of the block
  int tiles = 0, features = 0;
  bool past = false;  // whether there is a far state
  int block_offset = 0, count = 0;
  float stabilizer = 0;
  const float* decay_sums = nullptr;  // G of the block's tokens; with a decay gate
};

// Starts the copy of [ROWS][COLUMNS] elements to swizzled rows; rows from `valid` on become zero.
template <int ROWS, int COLUMNS, int THREADS>
__device__ __forceinline__ void CopySwizzled(const Bf16* from, int64_t stride, int valid,
                                             Bf16* to) {
  constexpr int kChunks = COLUMNS / 8, kStep = THREADS / kChunks;
  const int thread = static_cast<int>(threadIdx.x) % THREADS;
  const int first = thread / kChunks, chunk = thread % kChunks;
  const Bf16* row = from + first * stride + 8 * chunk;
#pragma unroll 4
  for (int i = 0; i < ROWS; i += kStep) {
    const bool inside = first + i < valid;
    CopyAsync16(to + SwizzledChunk(first + i, chunk), inside ? row : from, inside);
    row += kStep * stride;
  }
}

// A warp's sums over its 16 rows, of one part or of all: of values, and of weights in the lanes with t
// = 0 (elements 0 and 2 of the ninth tile; elements 1 and 3 are those of the remainders of z).
struct GroupSums {
  float tiles[9][4];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[n][i] = 0;
    }
  }
  __device__ __forceinline__ void Add(const GroupSums& part) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[n][i] += part.tiles[n][i];
    }
    tiles[8][0] += part.tiles[8][0] + part.tiles[8][1];
    tiles[8][2] += part.tiles[8][2] + part.tiles[8][3];
  }
  // Multiplies the sums of row `half`.
  __device__ __forceinline__ void Scale(int half, float factor) {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
      tiles[n][2 * half] *= factor;
      tiles[n][2 * half + 1] *= factor;
    }
  }
};

// Computes the rows of a thread block. store(row, column, low, high) gets the results of two columns of
// a row below `count`, and denominator(row, value) each row's denominator. GATED: with a decay gate.
template <int NEAR, int POWER, bool GATED>
class GroupAttention {
 public:
  __device__ GroupAttention(const GroupRows& rows, const GroupMemory& memory)
      : rows_(rows),
        memory_(memory),
        far_parts_(rows.past ? (rows.features + kPartFeatures - 1) / kPartFeatures : 0),
        parts_(far_parts_ + (rows.block_offset + rows.count - 1) / kPartKeysTensor + 1) {
    const int thread = threadIdx.x;
    if (thread == 0) memory_.ring.Init(kWarpSize, kGroupWarps);
    if (thread < kGroupStages) memory_.readers[thread] = 0;
    if (thread < 16) {
      *reinterpret_cast<uint4*>(memory_.ones + SwizzledChunk(thread, 0)) = {0x3f80u, 0, 0, 0};
    }
  }

  // Starts the copies of the first parts. The thread block has synchronised since the construction and
  // since the state was stored.
  __device__ __forceinline__ void Begin() const {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    if (warp < kGroupStages) Fill(warp);
  }

  // The caller has stored the queries in `memory`, without a barrier.
  template <typename Store, typename Denominator>
  __device__ __forceinline__ void Run(const Store& store, const Denominator& denominator) {
    const int thread = threadIdx.x, lane = thread % kWarpSize;
    const int group_row = thread / kWarpgroup * 64;
    FenceForProducts();
    // All threads see the queries.
    if (!PS_PLANTED(GROUP_BARRIER)) __syncthreads();
    GroupSums total, sums;
    total.Clear();
    FarQueries queries;
    for (int part = 0; part < parts_; ++part) {
      const auto* stage = reinterpret_cast<const Bf16*>(
          PS_PLANTED(GROUP_WAIT) ? memory_.ring.stage(part) : memory_.ring.Await(part));
      if (group_row < rows_.count) {
        if (part < far_parts_) {
          Far(part, stage, &queries, &sums);
          total.Add(sums);
          if (GATED && part + 1 == far_parts_) DecayFarPart(&total);
        } else if (Near(part, group_row, stage, &sums)) {
          total.Add(sums);
        }
      }
      Release(part);
    }

    const int t = lane % 4;
    ForRows<1>([&](int, int half, int r) {
      const int row = thread / kWarpSize * 16 + r;
      const float weights = __shfl_sync(kFullWarp, total.tiles[8][2 * half], lane - t);
      if (row >= rows_.count) return;
      if (t == 0) denominator(row, rows_.stabilizer + weights);
      const float inverse = 1.0f / (rows_.stabilizer + weights);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        store(row, 8 * n + 2 * t, total.tiles[n][2 * half] * inverse,
              total.tiles[n][2 * half + 1] * inverse);
      }
    });
  }

 private:
  // Of the next pair of tiles (I, J): q_i of this lane's two rows.
  struct FarQueries {
    int I = 0, J = 0;
    uint4 q_i[2];
  };

  // A warp: starts the copy of a part.
  __device__ __forceinline__ void Fill(int part) const {
    if (part < far_parts_) {
      memory_.ring.CopyPiece(part, rows_.state + part * (GroupMemory::kStage * 2),
                             Pairs(part) * kStateTile * 2);
    } else if (part < parts_) {
      const int first = (part - far_parts_) * kPartKeysTensor;
      const int count = rows_.block_offset + rows_.count - first;
      auto* keys = reinterpret_cast<Bf16*>(memory_.ring.stage(part));
      CopySwizzled<kPartKeysTensor, NEAR, kWarpSize>(rows_.keys.row(first), rows_.keys.stride,
                                                     count, keys);
      CopySwizzled<kPartKeysTensor, 64, kWarpSize>(rows_.values.row(first), rows_.values.stride,
                                                   count, keys + GroupMemory::kKeys);
      if constexpr (GATED) {
        CopyDecaySums(rows_.decay_sums + first, count, KeySums(part), kPartKeysTensor,
                      static_cast<int>(threadIdx.x) % kWarpSize, kWarpSize);
      }
      memory_.ring.End(part);
    }
  }

  // A warp: has read a part. The last warp fills its stage again.
  __device__ __forceinline__ void Release(int part) const {
    if (part + kGroupStages >= parts_) return;
    __syncwarp();
    int32_t before = 0;
    if (threadIdx.x % kWarpSize == 0) {
      before = CountArrivalInBlock(memory_.readers + part % kGroupStages);
    }
    const int readers = __shfl_sync(kFullWarp, before, 0) % kGroupWarps + 1;
    if (readers == kGroupWarps - (PS_PLANTED(GROUP_REFILL) ? 1 : 0)) Fill(part + kGroupStages);
  }

  // Pairs of tiles in a far part.
  __device__ __forceinline__ int Pairs(int part) const {
    return min(2, rows_.features / 64 - 2 * part);
  }
  // G of the keys of a near part.
  __device__ __forceinline__ float* KeySums(int part) const {
    return reinterpret_cast<float*>(memory_.ring.stage(part)) + GroupMemory::kKeys;
  }

  // Features of a pair of tiles (I, J) of this warp's rows: a[k] has i = 2 k, 2 k + 1.
  __device__ __forceinline__ void Features(FarQueries* queries, uint32_t (&a)[4][4]) const {
    const int lane = threadIdx.x % kWarpSize;
    const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16 + lane / 4;
    const int I = queries->I, J = queries->J;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16* q = memory_.far_q + (row + 8 * half) * memory_.far_row;
      uint4& q_i = queries->q_i[half];
      if (I == J) q_i = *reinterpret_cast<const uint4*>(q + 8 * I);
      uint32_t q_j = *reinterpret_cast<const uint32_t*>(q + 8 * J + 2 * (lane % 4));
      // Off-diagonal tiles count twice. Doubling is exact.
      if (I != J) q_j = MultiplyBf16(q_j, 0x40004000u);
      const uint32_t pairs[4] = {q_i.x, q_i.y, q_i.z, q_i.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        a[k][half] = MultiplyBf16(BroadcastLow(pairs[k]), q_j);
        a[k][2 + half] = MultiplyBf16(BroadcastHigh(pairs[k]), q_j);
      }
    }
    if (++queries->J == rows_.tiles) queries->J = ++queries->I;
  }

  __device__ __forceinline__ void Far(int part, const Bf16* tile, FarQueries* queries,
                                      GroupSums* sums) const {
    const int pairs = Pairs(part);
    for (int pair = 0; pair < pairs; ++pair, tile += kStateTile) {
      uint32_t a[4][4];
      Features(queries, a);
      BeginProducts();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        GroupProductOfRows(sums->tiles, a[k], tile, k, pair > 0 || k > 0);
      }
      CommitProducts();
      WaitProducts();
    }
  }

  // G of a row, or zero from row `count` on.
  __device__ __forceinline__ float RowDecaySum(int row) const {
    return row < rows_.count ? rows_.decay_sums[rows_.block_offset + row] : 0.0f;
  }

  // Multiplies the sums of all far parts by e^G of each row.
  __device__ __forceinline__ void DecayFarPart(GroupSums* sums) const {
    const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
    ForRows<1>([&](int, int half, int r) { sums->Scale(half, expf(RowDecaySum(warp_row + r))); });
  }

  static __device__ __forceinline__ float Weight(float dot, float row_sum, float key_sum) {
    const float square = dot * dot, weight = POWER == 2 ? square : square * square;
    return GATED ? weight * FastExp(row_sum - key_sum) : weight;
  }

  // Returns false if no row of the warpgroup attends to a key of the part.
  __device__ __forceinline__ bool Near(int part, int group_row, const Bf16* keys,
                                       GroupSums* sums) const {
    const int lane = threadIdx.x % kWarpSize, t = lane % 4;
    const int first = (part - far_parts_) * kPartKeysTensor;
    const int before = rows_.block_offset + group_row - first;  // keys before the first row
    if (before + 63 < 0) return false;
    const float* key_sums = KeySums(part);
    FenceForProducts();  // the copies that the barrier of the ring has counted
    float scores[8][4];
    BeginProducts();
    GroupScores<NEAR / 16>(scores, memory_.near_q + group_row * kSwizzledRow, keys);
    CommitProducts();
    WaitProducts();
    uint32_t a[4][4];
    if (before >= kPartKeysTensor - 1) {
      Weigh(
          scores, key_sums, [](int, int) { return true; }, a);
    } else {
      const int row =
          before + static_cast<int>(threadIdx.x) % kWarpgroup / kWarpSize * 16 + lane / 4;
      Weigh(
          scores, key_sums, [&](int column, int half) { return column + 2 * t <= row + 8 * half; },
          a);
    }
    BeginProducts();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      GroupProduct(sums->tiles, a[k], keys + GroupMemory::kKeys, memory_.ones, k, k > 0);
    }
    CommitProducts();
    WaitProducts();
    return true;
  }

  // The weights of scores as A fragments. seen(column, half): of the element's column less 2 t.
  // key_sums: G of the keys.
  template <typename Seen>
  __device__ __forceinline__ void Weigh(const float (&scores)[8][4], const float* key_sums,
                                        const Seen& seen, uint32_t (&a)[4][4]) const {
    float row_sums[2] = {};
    if constexpr (GATED) {
      const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
      ForRows<1>([&](int, int half, int r) { row_sums[half] = RowDecaySum(row + r); });
      key_sums += 2 * (threadIdx.x % 4);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 keys = GATED ? *reinterpret_cast<const float2*>(key_sums + 8 * n) : float2{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low =
            seen(8 * n, half) ? Weight(scores[n][2 * half], row_sums[half], keys.x) : 0.0f;
        const float high =
            seen(8 * n + 1, half) ? Weight(scores[n][2 * half + 1], row_sums[half], keys.y) : 0.0f;
        a[n / 2][n % 2 * 2 + half] = PackBf16(low, high);
      }
    }
  }

  const GroupRows& rows_;
  const GroupMemory& memory_;
  const int far_parts_, parts_;
};

}  // namespace polysketch::cuda
