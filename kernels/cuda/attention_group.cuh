// The queries of up to 128 rows of a block by two warpgroups, for head size 64 and packed symmetric
// features: the parts of attention_parts.cuh with the same bits, on the products of warpgroup.cuh.
//
// A stage of shared memory holds one part: 128 rows of S, or 64 keys and their values. Two stages
// are copied while a third is read, with one barrier a part. The queries of the far sum are stored
// as pairs (q_i, q_i), so that a feature costs one multiplication of pairs and no shuffle. z is
// split once a part into the two 16-bit columns that multiply it (WeightPair). The place of z has G
// of the keys in near parts of a model with a decay gate.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace polysketch::cuda {

constexpr int kGroupThreads = 2 * kWarpgroup;
constexpr int kGroupRows = 128;
constexpr int kGroupStages = 3;
constexpr int kGroupHeadSize = 64;

// Shared memory of GroupAttention.
struct GroupMemory {
  static constexpr int kStage = kPartFeatures * kSwizzledRow;  // elements
  static constexpr int kColumn = kPartFeatures + kRowPad;      // elements
  // [stages] of S [128][64], or keys [64][64] and values [64][64]; swizzled.
  Bf16* stages;
  Bf16* near_q;     // [128][64], swizzled
  float* z;         // [stages][128]: z, or G of the keys
  Bf16* columns;    // [stages][2][128 + pad]: z rounded, the remainder; then one column of zeros
  uint32_t* far_q;  // [128][far_dim + 4]: pairs (q_i, q_i)
  int far_row;

  static __host__ __device__ int64_t Bytes(int far_dim) {
    return (kGroupStages * kStage + kGroupRows * kSwizzledRow) * 2 +
           kGroupStages * kPartFeatures * 4 + (2 * kGroupStages + 1) * kColumn * 2 +
           static_cast<int64_t>(kGroupRows) * (far_dim + 4) * 4;
  }
  __device__ GroupMemory(void* memory, int far_dim) : far_row(far_dim + 4) {
    stages = static_cast<Bf16*>(memory);
    near_q = stages + kGroupStages * kStage;
    z = reinterpret_cast<float*>(near_q + kGroupRows * kSwizzledRow);
    columns = reinterpret_cast<Bf16*>(z + kGroupStages * kPartFeatures);
    far_q = reinterpret_cast<uint32_t*>(columns + (2 * kGroupStages + 1) * kColumn);
  }
  __device__ __forceinline__ Bf16* stage(int i) const { return stages + i * kStage; }
  __device__ __forceinline__ Bf16* column(int i) const { return columns + i * kColumn; }

  // Eight elements of a row, as pairs.
  __device__ __forceinline__ void StoreNear(int row, int chunk, const uint4& pairs) const {
    *reinterpret_cast<uint4*>(near_q + SwizzledChunk(row, chunk)) = pairs;
  }
  // Elements 4 i to 4 i + 3 of a row, given as two pairs.
  __device__ __forceinline__ void StoreFar(int row, int i, uint32_t low, uint32_t high) const {
    *reinterpret_cast<uint4*>(far_q + row * far_row + 4 * i) = {
        BroadcastLow(low), BroadcastHigh(low), BroadcastLow(high), BroadcastHigh(high)};
  }
};

// What GroupAttention computes: rows [block_offset, block_offset + count) of a block.
struct GroupRows {
  const Bf16* S = nullptr;  // [features][64], as queries read it
  const float* z = nullptr;
  RowArray keys, values;  // of the block
  int tiles = 0, features = 0;
  bool past = false;  // whether there is a far state
  int block_offset = 0, count = 0;
  float stabilizer = 0;
  const float* decay_sums = nullptr;  // G of the block's tokens; with a decay gate
};

// Starts the copy of [ROWS][COLUMNS] elements to swizzled rows; rows from `valid` on become zero.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void CopySwizzled(const Bf16* from, int64_t stride, int valid,
                                             Bf16* to) {
  constexpr int kChunks = COLUMNS / 8;
  constexpr int kStep = kGroupThreads / kChunks;  // rows, a multiple of the 8 that the swizzle has
  const int first = static_cast<int>(threadIdx.x) / kChunks, chunk = threadIdx.x % kChunks;
  const Bf16* row = from + first * stride + 8 * chunk;
  to += SwizzledChunk(first, chunk);
#pragma unroll
  for (int i = 0; i < ROWS / kStep; ++i) {
    const bool inside = first + i * kStep < valid;
    CopyAsync16(to + i * kStep * kSwizzledRow, inside ? row + i * kStep * stride : from, inside);
  }
}

// A warp's sums over its 16 rows, of one part or of all; RowSums has their layout.
struct GroupSums {
  float values[8][4];
  float weights[4];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] = 0;
    }
    ClearWeights();
  }
  __device__ __forceinline__ void ClearWeights() {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = 0;
  }
  __device__ __forceinline__ void Add(const GroupSums& part) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] += part.values[n][i];
    }
    weights[0] += part.weights[0];
    weights[2] += part.weights[2];
  }
  // Multiplies the sums of row `half`.
  __device__ __forceinline__ void Scale(int half, float factor) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      values[n][2 * half] *= factor;
      values[n][2 * half + 1] *= factor;
    }
    weights[2 * half] *= factor;
  }
};

// sums = a [16 x 16 K] times rows of `right`, and the weights with the columns of `weight_pair(k,
// half)`.
template <int K, typename WeightPairOf>
__device__ __forceinline__ void GroupPart(const uint32_t (&a)[K][4], const Bf16* right,
                                          const WeightPairOf& weight_pair, GroupSums* sums) {
  BeginProducts();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    GroupProduct(sums->values, a[k], right + 16 * k * kSwizzledRow, k > 0);
  }
  CommitProducts();
  sums->ClearWeights();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    MmaBf16(sums->weights, a[k], weight_pair(k, 0), weight_pair(k, 1));
  }
  WaitProducts();
}

// Computes the rows of a thread block. The caller has stored the queries in `memory`, without a
// barrier. store(row, column, low, high) gets the results of two columns of a row below `count`,
// and denominator(row, value) each row's denominator. GATED: with a decay gate.
template <int NEAR, int POWER, bool GATED>
class GroupAttention {
 public:
  __device__ GroupAttention(const GroupRows& rows, const GroupMemory& memory)
      : rows_(rows),
        memory_(memory),
        far_parts_(rows.past ? (rows.features + kPartFeatures - 1) / kPartFeatures : 0),
        parts_(far_parts_ + (rows.block_offset + rows.count - 1) / kPartKeysTensor + 1) {}

  // Starts the copies of the first parts.
  __device__ __forceinline__ void Begin() {
    if (threadIdx.x < GroupMemory::kColumn) memory_.column(2 * kGroupStages)[threadIdx.x] = 0;
    Load(0);
    Load(1);
  }

  template <typename Store, typename Denominator>
  __device__ __forceinline__ void Run(const Store& store, const Denominator& denominator) {
    const int thread = threadIdx.x, lane = thread % kWarpSize;
    const int group_row = thread / kWarpgroup * 64;
    GroupSums total, sums;
    total.Clear();
    int I = 0, J = 0;
    for (int part = 0; part < parts_; ++part) {
      WaitCopies<1>();
      if (part < far_parts_) SplitWeights(part % kGroupStages);
      FenceForProducts();
#if !defined(POLYSKETCH_FAULT_GROUP_BARRIER)
      __syncthreads();  // all threads see this part and have read the one before it
#endif
      Load(part + 2);
      if (group_row >= rows_.count) continue;
      if (part < far_parts_) {
        Far(part, &I, &J, &sums);
      } else if (!Near(part, group_row, &sums)) {
        continue;
      }
      total.Add(sums);
      if (GATED && part + 1 == far_parts_) DecayFarPart(&total);
    }
    WaitCopies<0>();

    const int t = lane % 4;
    ForRows<1>([&](int, int half, int r) {
      const int row = thread / kWarpSize * 16 + r;
      const float weights = __shfl_sync(kFullWarp, total.weights[2 * half], lane - t);
      if (row >= rows_.count) return;
      if (t == 0) denominator(row, rows_.stabilizer + weights);
      const float inverse = 1.0f / (rows_.stabilizer + weights);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        store(row, 8 * n + 2 * t, total.values[n][2 * half] * inverse,
              total.values[n][2 * half + 1] * inverse);
      }
    });
  }

 private:
  __device__ __forceinline__ void Load(int part) {
    if (part < far_parts_) {
      const int first = part * kPartFeatures, stage = part % kGroupStages;
      const int count = min(kPartFeatures, rows_.features - first);
      CopySwizzled<kPartFeatures, 64>(rows_.S + first * 64, 64, count, memory_.stage(stage));
      if (threadIdx.x < kPartFeatures / 4) {
        const int i = 4 * static_cast<int>(threadIdx.x);
        CopyAsync16(memory_.z + stage * kPartFeatures + i,
                    i < count ? rows_.z + first + i : rows_.z, i < count);
      }
    } else if (part < parts_) {
      const int first = (part - far_parts_) * kPartKeysTensor;
      const int count = rows_.block_offset + rows_.count - first;
      Bf16* keys = memory_.stage(part % kGroupStages);
      CopySwizzled<kPartKeysTensor, NEAR>(rows_.keys.row(first), rows_.keys.stride, count, keys);
      CopySwizzled<kPartKeysTensor, 64>(rows_.values.row(first), rows_.values.stride, count,
                                        keys + kPartKeysTensor * kSwizzledRow);
      if constexpr (GATED) {
        CopyDecaySums(rows_.decay_sums + first, count,
                      memory_.z + part % kGroupStages * kPartFeatures, kPartKeysTensor,
                      static_cast<int>(threadIdx.x), kGroupThreads);
      }
    }
    CommitCopies();
  }

  // A thread splits the elements of z that it copied, so that they need no barrier of their own.
  __device__ __forceinline__ void SplitWeights(int stage) const {
    if (threadIdx.x >= kPartFeatures / 4) return;
    const int i = 4 * static_cast<int>(threadIdx.x);
    const float* z = memory_.z + stage * kPartFeatures + i;
    Bf16* upper = memory_.column(2 * stage) + i;
    Bf16* rest = memory_.column(2 * stage + 1) + i;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint32_t pair = PackBf16(z[j], z[j + 1]);
      *reinterpret_cast<uint32_t*>(upper + j) = pair;
      *reinterpret_cast<uint32_t*>(rest + j) =
          PackBf16(z[j] - WidenBf16(static_cast<Bf16>(pair)),
                   z[j + 1] - WidenBf16(static_cast<Bf16>(pair >> 16)));
    }
  }

  // Features of one pair of tiles (I, J) of this warp's rows: a[k] has i = 2 k, 2 k + 1.
  __device__ __forceinline__ void Features(int I, int J, uint32_t (*a)[4]) const {
    const int lane = threadIdx.x % kWarpSize, t = lane % 4;
    const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* q = memory_.far_q + (row + 8 * half) * memory_.far_row;
      const uint2 pairs = *reinterpret_cast<const uint2*>(q + 8 * J + 2 * t);
      uint32_t q_j = (pairs.x & 0xffffu) | (pairs.y & 0xffff0000u);
      // Off-diagonal tiles count twice. Doubling is exact.
      if (I != J) q_j = MultiplyBf16(q_j, 0x40004000u);
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const uint4 q_i = *reinterpret_cast<const uint4*>(q + 8 * I + 2 * k);
        a[k][half] = MultiplyBf16(q_i.x, q_j);
        a[k][2 + half] = MultiplyBf16(q_i.y, q_j);
        a[k + 1][half] = MultiplyBf16(q_i.z, q_j);
        a[k + 1][2 + half] = MultiplyBf16(q_i.w, q_j);
      }
    }
  }

  // I, J: the first pair of tiles of the part; becomes that of the next part.
  __device__ __forceinline__ void Far(int part, int* I, int* J, GroupSums* sums) const {
    uint32_t a[8][4];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      if (*I < rows_.tiles) {
        Features(*I, *J, a + 4 * pair);
        if (++*J == rows_.tiles) *J = ++*I;
      } else {
#pragma unroll
        for (int k = 4 * pair; k < 4 * pair + 4; ++k) a[k][0] = a[k][1] = a[k][2] = a[k][3] = 0;
      }
    }
    const int lane = threadIdx.x % kWarpSize, g = lane / 4, stage = part % kGroupStages;
    const Bf16* column = memory_.column(g < 2 ? 2 * stage + g : 2 * kGroupStages) + 2 * (lane % 4);
    GroupPart<8>(
        a, memory_.stage(stage),
        [&](int k, int half) {
          return *reinterpret_cast<const uint32_t*>(column + 16 * k + 8 * half);
        },
        sums);
    sums->weights[0] += sums->weights[1];
    sums->weights[2] += sums->weights[3];
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
  __device__ __forceinline__ bool Near(int part, int group_row, GroupSums* sums) const {
    const int lane = threadIdx.x % kWarpSize, t = lane % 4;
    const int first = (part - far_parts_) * kPartKeysTensor;
    const int before = rows_.block_offset + group_row - first;  // keys before the first row
    if (before + 63 < 0) return false;
    const Bf16* keys = memory_.stage(part % kGroupStages);
    const float* key_sums = memory_.z + part % kGroupStages * kPartFeatures;
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
    const uint32_t ones = lane / 4 == 0 ? 0x3f803f80u : 0u;
    GroupPart<4>(
        a, keys + kPartKeysTensor * kSwizzledRow, [&](int, int) { return ones; }, sums);
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
