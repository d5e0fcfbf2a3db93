// The far states of consecutive blocks, for head size 64 and packed symmetric features. A thread block
// walks the blocks in order with 64 features. One or two warpgroups take the blocks in turn: each sums
// its block from zero, and adds it to the state in shared memory when the block before it has been
// added. So the states are those of FoldTensor and ScanStates, without partial sums in memory. GATED:
// with a decay gate, which scales the keys' column j of each feature (i, j), as FeatureColumns does.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/group_shape.h"
#include "kernels/cuda/mx_int8.h"
#include "kernels/cuda/planted.h"
#include "kernels/cuda/warpgroup.cuh"

namespace polysketch::cuda {

constexpr int kMaxWalkGroups = 2;  // warpgroups
constexpr int kWalkThreads = kMaxWalkGroups * kWarpgroup;
constexpr int kWalkFeatures = 64;
constexpr int kWalkPart = 64;
constexpr int kWalkStages = 6;
// Parts that are copied ahead. A part's stage is free two parts later.
constexpr int kWalkAhead = kWalkStages - 2;

// Tokens of consecutive blocks. tokens: of all blocks; only the last block may be shorter.
struct WalkRows {
  RowArray keys, values;
  int64_t tokens = 0;
  int block = 0;
  const float* decay_sums = nullptr;  // G of the tokens; with a decay gate
};

// Shared memory of WalkBlocks. Of each warpgroup: stages of values [64][64], swizzled; stages of the
// columns of the tiles I and J of the keys [2][64][8]; with a decay gate stages of G of the tokens and
// of the last token of their block [2][64]. Of all: the column of ones that the weights are multiplied
// with, [16][8], swizzled; the state, [9][128] tiles of a lane; a barrier for each warp, which says
// that the block before has been added.
struct WalkMemory {
  static constexpr int kValues = kWalkPart * kSwizzledRow;  // elements
  static constexpr int kOnes = 16 * kSwizzledRow;           // elements
  static constexpr int kKeys = 2 * kWalkPart * 8;           // elements
  static constexpr int kDecaySums = 2 * kWalkPart;          // floats
  static constexpr int64_t OfGroup(bool gated) {
    return kWalkStages * ((kValues + kKeys) * 2 + (gated ? kDecaySums * 4 : 0));
  }
  static constexpr int64_t Bytes(bool gated, int groups) {
    return groups * OfGroup(gated) + kOnes * 2 + 9 * kWarpgroup * static_cast<int>(sizeof(float4)) +
           groups * kWarpgroup / kWarpSize * static_cast<int>(sizeof(uint64_t));
  }
  // The most warpgroups that `limit` bytes have room for.
  static constexpr int Groups(bool gated, int64_t limit) {
    return Bytes(gated, kMaxWalkGroups) <= limit ? kMaxWalkGroups : 1;
  }
  Bf16 *values, *ones, *keys;
  float* decay_sums;
  float4* state;
  uint64_t* turns;  // [groups][4]
  __device__ WalkMemory(uint8_t* memory, bool gated, int group, int groups)
      : values(reinterpret_cast<Bf16*>(memory) + group * kWalkStages * kValues),
        ones(reinterpret_cast<Bf16*>(memory) + groups * kWalkStages * kValues),
        keys(ones + kOnes + group * kWalkStages * kKeys),
        decay_sums(reinterpret_cast<float*>(ones + kOnes + groups * kWalkStages * kKeys) +
                   group * kWalkStages * kDecaySums),
        state(reinterpret_cast<float4*>(memory + groups * OfGroup(gated) + kOnes * 2)),
        turns(reinterpret_cast<uint64_t*>(state + 9 * kWarpgroup)) {}
};

// Of this thread: its warpgroup, of how many, and its place in it.
struct WalkPlace {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int groups = static_cast<int>(blockDim.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warp = thread / kWarpSize;
};

// A warp's sums over 16 features: of 64 columns of values, and of weights in the lanes with t = 0
// (elements 0 and 2 of the ninth tile).
struct WalkSums {
  float tiles[9][4];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[n][i] = 0;
    }
  }
  __device__ __forceinline__ void Add(const WalkSums& block) {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[n][i] += block.tiles[n][i];
    }
  }
  // To and from the tiles of a lane in WalkMemory::state.
  __device__ __forceinline__ void Store(float4* to) const {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
      to[n * kWarpgroup] = {tiles[n][0], tiles[n][1], tiles[n][2], tiles[n][3]};
    }
  }
  __device__ __forceinline__ void Load(const float4* from) {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
      const float4 four = from[n * kWarpgroup];
      tiles[n][0] = four.x, tiles[n][1] = four.y, tiles[n][2] = four.z, tiles[n][3] = four.w;
    }
  }
  // this = kept * this + block.
  __device__ __forceinline__ void Decay(float kept, const WalkSums& block) {
#pragma unroll
    for (int n = 0; n < 9; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[n][i] = fmaf(kept, tiles[n][i], block.tiles[n][i]);
    }
  }
  // Visits pairs of sums and their offsets in [features][64], and weights and their features.
  template <typename Pair, typename Weight>
  __device__ __forceinline__ void Visit(int feature, const Pair& pair, const Weight& weight) {
    const int t = threadIdx.x % 4;
    ForRows<1>([&](int, int half, int row) {
      const int64_t f = feature + row;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        pair(f * 64 + 8 * n + 2 * t, &tiles[n][2 * half], &tiles[n][2 * half + 1]);
      }
      if (t == 0) weight(f, &tiles[8][2 * half]);
    });
  }
};

// Copies the parts of a warpgroup's blocks, each to the next stage: 64 tokens of a block, or what is
// left of it.
template <bool GATED>
class WalkLoader {
 public:
  __device__ WalkLoader(const WalkRows& rows, int I, int J, const WalkMemory& memory,
                        const WalkPlace& place)
      : left_(static_cast<int>(rows.tokens) - place.group * rows.block),
        of_block_(rows.block),
        block_(rows.block),
        thread_(place.thread),
        skipped_((place.groups - 1) * rows.block) {
    const int thread = place.thread, row = thread / 8, chunk = thread % 8;
    const int key = thread % kWalkPart, tile = thread < kWalkPart ? I : J;
    const int64_t first = static_cast<int64_t>(place.group) * rows.block;
    values_ = rows.values.row(first + row) + 8 * chunk;
    value_stride_ = static_cast<int>(rows.values.stride);
    keys_ = rows.keys.row(first + key) + 8 * tile;
    key_stride_ = static_cast<int>(rows.keys.stride);
    to_values_ = memory.values + SwizzledChunk(row, chunk);
    to_keys_ = memory.keys + thread * 8;
    if constexpr (GATED) {
      decay_sums_ = rows.decay_sums + first + key;
      to_sums_ = memory.decay_sums + key;
    }
  }

  // Starts the copy of the next part, if there is one.
  __device__ __forceinline__ void Next() {
    if (left_ >= kWalkPart && of_block_ >= kWalkPart) {
      Copy<true>(kWalkPart);
      Advance(kWalkPart);
    } else if (left_ > 0) {
      const int step = min(kWalkPart, of_block_);
      Copy<false>(min(left_, step));
      Advance(step);
    }
    CommitCopies();
  }

 private:
  __device__ __forceinline__ void Advance(int step) {
    Skip(step);
    of_block_ -= step;
    if (of_block_ == 0) {
      Skip(skipped_);
      of_block_ = block_;
    }
    if (++stage_ == kWalkStages) stage_ = 0;
  }

  __device__ __forceinline__ void Skip(int tokens) {
    values_ += static_cast<int64_t>(tokens) * value_stride_;
    keys_ += static_cast<int64_t>(tokens) * key_stride_;
    if constexpr (GATED) decay_sums_ += tokens;
    left_ -= tokens;
  }

  // Every thread copies four chunks of the values, 16 rows apart, and one of the keys.
  template <bool kWhole>
  __device__ __forceinline__ void Copy(int count) {
    constexpr int kStep = kWarpgroup / 8;
    const int row = thread_ / 8, key = thread_ % kWalkPart;
    Bf16* to = to_values_ + stage_ * WalkMemory::kValues;
#pragma unroll
    for (int i = 0; i < kWalkPart / kStep; ++i) {
      const bool inside = kWhole || row + i * kStep < count;
      CopyAsync16(to + i * kStep * kSwizzledRow,
                  inside ? values_ + i * kStep * value_stride_ : values_ - row * value_stride_,
                  inside);
    }
    const bool inside = kWhole || key < count;
    CopyAsync16(to_keys_ + stage_ * WalkMemory::kKeys, inside ? keys_ : keys_ - key * key_stride_,
                inside);
    if constexpr (GATED) {
      if (thread_ >= kWalkPart) CopyDecaySums(key, inside);
    }
  }

  // Of the token whose key this thread copies for tile J, which it scales later.
  __device__ __forceinline__ void CopyDecaySums(int key, bool inside) {
    float* to = to_sums_ + stage_ * WalkMemory::kDecaySums;
    const float* part = decay_sums_ - key;
    const int block_end = min(left_, of_block_);
    CopyAsync4(to, inside ? decay_sums_ : part, inside);
    CopyAsync4(to + kWalkPart, part + block_end - 1, true);
  }

  // Of this thread: its first row of the next part, and its place in the first stage.
  const Bf16 *values_, *keys_;
  int value_stride_, key_stride_;
  Bf16 *to_values_, *to_keys_;
  const float* decay_sums_;  // with a decay gate, as to_sums_
  float* to_sums_;
  int left_;      // tokens
  int of_block_;  // tokens of the current block that are left
  const int block_, thread_;
  const int skipped_;  // tokens of other warpgroups' blocks, between two of this one's
  int stage_ = 0;
};

// Multiplies the elements of tile J of the key that this thread has copied, which no other thread has
// seen yet, by e^(G_b - G_s).
__device__ __forceinline__ void DecayKey(const WalkMemory& memory, int stage, int thread) {
  if (thread < kWalkPart) return;
  const float* sums = memory.decay_sums + stage * WalkMemory::kDecaySums + thread % kWalkPart;
  const float factor = FastExp(sums[kWalkPart] - sums[0]);
  auto* key = reinterpret_cast<uint4*>(memory.keys + stage * WalkMemory::kKeys + thread * 8);
  const uint4 pairs = *key;
  *key = {ScalePair(pairs.x, factor, factor), ScalePair(pairs.y, factor, factor),
          ScalePair(pairs.z, factor, factor), ScalePair(pairs.w, factor, factor)};
}

// The features of a part as A fragments. keys: the tiles I and J of 64 tokens [2][64][8].
__device__ __forceinline__ void FeaturesOfKeys(const Bf16* keys, int warp, uint32_t (&a)[4][4]) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // x_i of tokens 0-7, 8-15; x_j of the same; i, j = lane / 4.
    uint32_t x[4];
    LoadMatrix4T(x, keys + (lane / 16 * kWalkPart + 16 * k + lane % 16) * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = (2 * warp + half) * 4 + (PS_PLANTED(SWAPPED_LANE) ? t ^ 1 : t);
      a[k][half] = MultiplyBf16(__shfl_sync(kFullWarp, x[0], from), x[2]);
      a[k][2 + half] = MultiplyBf16(__shfl_sync(kFullWarp, x[1], from), x[3]);
    }
  }
}

// blockIdx.x: a pair of tiles. `state` holds the state before the first block, in the first warpgroup.
// A warpgroup calls after(block, &state) when it has added a block, while others may go on. Returns
// whether `state` holds the state after the last block. There may be no tokens.
//
// The products of a part run while the features of the next one are made. So a part's stage is free
// only after the barrier of the part after the next.
template <bool GATED, typename After>
__device__ __forceinline__ bool WalkBlocks(const WalkRows& rows, int tiles, WalkSums* state,
                                           const After& after) {
  const int blocks = static_cast<int>((rows.tokens + rows.block - 1) / rows.block);
  if (blocks == 0) return false;
  int I = 0, J = 0;
  TilesOf(static_cast<int>(blockIdx.x), tiles, &I, &J);
  const WalkPlace place;
  const int thread = place.thread, group = place.group, groups = place.groups;
  const WalkMemory memory(SharedMemory<uint8_t>(), GATED, group, groups);
  WalkLoader<GATED> loader(rows, I, J, memory, place);
  for (int i = 0; i < kWalkAhead; ++i) loader.Next();
  if (threadIdx.x < 16) {
    *reinterpret_cast<uint4*>(memory.ones + SwizzledChunk(static_cast<int>(threadIdx.x), 0)) = {
        0x3f80u, 0, 0, 0};
  }
  if (thread % kWarpSize == 0) InitBarrier(memory.turns + group * 4 + place.warp, 1);
  if (group == 0) state->Store(memory.state + thread);
  FenceForProducts();
  __syncthreads();

  const int parts_of_block = (rows.block + kWalkPart - 1) / kWalkPart;
  WalkSums sums;
  float kept = 1;                      // of the state, by the block in `sums`
  uint32_t turn = group == 0 ? 1 : 0;  // the first block awaits none
  const auto add = [&](int block) {
    if (!PS_PLANTED(WALK_TURN) && block > 0)
      AwaitPhase(memory.turns + group * 4 + place.warp, turn);
    turn ^= 1;
    state->Load(memory.state + thread);
    if constexpr (GATED) {
      state->Decay(kept, sums);
    } else {
      state->Add(sums);
    }
    state->Store(memory.state + thread);
    __syncwarp();
    if (thread % kWarpSize == 0) {
      ArriveAt(memory.turns + (group + 1 == groups ? 0 : group + 1) * 4 + place.warp);
    }
    after(block, state);
  };
  int stage = 0, block = group;
  for (; block < blocks; block += groups) {
    for (int part = 0; part < parts_of_block; ++part) {
      WaitCopies<kWalkAhead - 1>();
      if constexpr (GATED) DecayKey(memory, stage, thread);
      FenceForProducts();
      // All threads see this part and have ended the products of the last but one.
      if (!PS_PLANTED(WALK_BARRIER)) {
        group == 0 ? SyncNamed<1>(kWarpgroup) : SyncNamed<2>(kWarpgroup);
      }
      uint32_t a[4][4];
      FeaturesOfKeys(memory.keys + stage * WalkMemory::kKeys, place.warp, a);
      WaitProducts();  // of the part before
      if (GATED && part == 0) {
        kept = expf(memory.decay_sums[stage * WalkMemory::kDecaySums + kWalkPart]);
      }
      BeginProducts();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        GroupProduct(sums.tiles, a[k], memory.values + stage * WalkMemory::kValues, memory.ones, k,
                     k > 0 || part > 0);
      }
      CommitProducts();
      loader.Next();
      if (++stage == kWalkStages) stage = 0;
    }
    WaitProducts();
    add(block);
  }
  WaitCopies<0>();
  return block - groups + 1 == blocks;
}

// The first feature of this warp.
__device__ __forceinline__ int WalkFeature() {
  return static_cast<int>(blockIdx.x) * kWalkFeatures + WalkPlace().warp * 16;
}

// Transposes 4 x 4 words among the lanes of a quad: lane t gives word t of each of four chunks and
// gets chunk t.
__device__ __forceinline__ uint4 TransposeQuad(const uint32_t (&words)[4]) {
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
  const uint32_t a = __shfl_xor_sync(kFullWarp, odd ? words[0] : words[1], 1);
  const uint32_t b = __shfl_xor_sync(kFullWarp, odd ? words[2] : words[3], 1);
  // Words of this pair of lanes: of chunk 0 or 1, of chunk 2 or 3.
  const uint2 low{odd ? a : words[0], odd ? words[1] : a};
  const uint2 high{odd ? b : words[2], odd ? words[3] : b};
  const uint32_t x = __shfl_xor_sync(kFullWarp, upper ? low.x : high.x, 2);
  const uint32_t y = __shfl_xor_sync(kFullWarp, upper ? low.y : high.y, 2);
  return upper ? uint4{x, y, high.x, high.y} : uint4{low.x, low.y, x, y};
}

// Counts what the warps of a walk have stored, so that queries can begin before the walk ends: a
// kernel launched early waits for the counters of all features (Await). A warp would wait for a store
// that it has just begun. So it counts, when it stores state i of a walk by n warpgroups, state i - n,
// which it has stored itself, and those before it, which the others had stored before they handed it
// the state.
struct WalkProgress {
  int32_t* counters = nullptr;  // [walk][head][features / 16]
  int features = 0, heads = 0;

  __host__ __device__ int of_head() const { return WalkCounters(features); }
  __device__ __forceinline__ int32_t* Of(int64_t walk, int head) const {
    return counters + (walk * heads + head) * of_head();
  }
  // A warp is about to store state `index`, which it has been handed.
  __device__ __forceinline__ void Storing(int64_t walk, int head, int feature, int index) const {
    const int count = index + 1 - WalkPlace().groups;
    if (count > 0) Add(walk, head, feature, count);
  }
  // All lanes of the warp know that `count` states are stored.
  __device__ __forceinline__ void Add(int64_t walk, int head, int feature, int count) const {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) Publish(Of(walk, head) + feature / 16, count);
  }
  // The thread block has stored all `count` states.
  __device__ __forceinline__ void End(int64_t walk, int head, int feature, int count) const {
    __syncthreads();
    if (WalkPlace().group == 0) Add(walk, head, feature, count);
  }
  // Waits until `count` states are stored. The caller has a barrier after it.
  __device__ __forceinline__ void Await(int64_t walk, int head, int count) const {
    for (int i = threadIdx.x; i < of_head(); i += blockDim.x) {
      AwaitCounter(Of(walk, head) + i, count);
    }
  }
};

// The scales of the blocks of the copy (mx_int8.h) of a warp's sums of values.
struct WalkScales {
  uint8_t of[2][2];  // rows g and g + 8; columns from 0 and from 32 on
  __device__ __forceinline__ explicit WalkScales(const WalkSums& state) {
    ForRows<1>([&](int, int half, int) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint32_t magnitude = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float sum = state.tiles[4 * block + i / 2][2 * half + i % 2];
          magnitude = max(magnitude, FloatBits(sum) & 0x7fffffffu);
        }
        magnitude = max(magnitude, __shfl_xor_sync(kFullWarp, magnitude, 1));
        magnitude = max(magnitude, __shfl_xor_sync(kFullWarp, magnitude, 2));
        of[half][block] = MxScale(magnitude);
      }
    });
  }
};

// Stores the copy of a warp's sums of values. size: of S.
__device__ __forceinline__ void StoreCopy(int feature, const WalkSums& state, uint8_t* copy,
                                          int64_t size) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const WalkScales scales(state);
  uint8_t* of_scales = copy + MxScalesAt(size);
  ForRows<1>([&](int, int half, int row) {
    const int64_t f = feature + row;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {  // columns 8 n + 2 t and 2 t + 1, and those 8 further
      const uint8_t scale = scales.of[half][n / 4];
      uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = state.tiles[n + i % 2][2 * half + i / 2];
        word |= static_cast<uint32_t>(MxNumber(sum, scale)) << (8 * i);
      }
      *reinterpret_cast<uint32_t*>(copy + f * 64 + MxPlace(64, 8 * n + 2 * t)) = word;
    }
    if (t == 0) {
      *reinterpret_cast<uint16_t*>(of_scales + f * 2) =
          static_cast<uint16_t>(scales.of[half][0] | scales.of[half][1] << 8);
    }
  });
}

// The upper planes of two sums.
__device__ __forceinline__ uint32_t UpperPair(const float* sums) {
  return static_cast<uint32_t>(UpperPlane(FloatBits(sums[1]))) << 16 |
         UpperPlane(FloatBits(sums[0]));
}

// Two sums as their copy has them.
__device__ __forceinline__ uint32_t CopyPair(const float* sums, uint8_t scale) {
  return (MxRounded(sums[1], scale) & 0xffff0000u) | MxRounded(sums[0], scale) >> 16;
}

// Stores a state as the queries of warpgroups read it (group_shape.h). values(n, half): a pair of tile n.
template <typename Values>
__device__ __forceinline__ void StoreTilesOf(int feature, const WalkSums& state, Bf16* tiles,
                                             const Values& values) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  Bf16* tile = tiles + feature / 64 * kStateTile;
  const auto pair = [&](int n, int half) -> uint32_t {
    const float* sums = state.tiles[n] + 2 * half;
    if (n < 8) return values(n, half);
    return t == 0 ? PackBf16(sums[0], sums[0] - WidenBf16(RoundBf16(sums[0]))) : 0;  // of z
  };
#pragma unroll
  for (int n = 0; n < 9; n += 2) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n + i / 2 < 9) words[i] = TransposeMatrix(pair(n + i / 2, i % 2));
    }
    // Two neighbouring chunks of a row in each pair of lanes.
    const uint4 features = TransposeQuad(words);
    const int row = 8 * (n + t / 2) + g;
    if (row >= kStateRows) continue;
    *reinterpret_cast<uint4*>(tile + SwizzledChunk(row, feature % 64 / 8 + t % 2)) = features;
  }
}

// COPY: the values of the copy, in place of the upper planes.
template <bool COPY = false>
__device__ __forceinline__ void StoreTiles(int feature, const WalkSums& state, Bf16* tiles) {
  if constexpr (COPY) {
    const WalkScales scales(state);
    StoreTilesOf(feature, state, tiles, [&](int n, int half) {
      return CopyPair(state.tiles[n] + 2 * half, scales.of[half][n / 4]);
    });
  } else {
    StoreTilesOf(feature, state, tiles,
                 [&](int n, int half) { return UpperPair(state.tiles[n] + 2 * half); });
  }
}

}  // namespace polysketch::cuda
