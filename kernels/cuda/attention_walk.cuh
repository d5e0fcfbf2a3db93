// The far states of consecutive blocks, for head size 64 and packed symmetric features. A warpgroup
// walks the blocks in order with 64 features: the sums of the current block and the state stay in
// registers. Each block is summed from zero and added once, so the states are those
// of FoldTensor and ScanStates, without partial sums in memory. GATED: with a decay gate, which
// scales the keys' column j of each feature (i, j), as FeatureColumns does.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/group_shape.h"
#include "kernels/cuda/warpgroup.cuh"

namespace polysketch::cuda {

constexpr int kWalkThreads = kWarpgroup;
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

// Shared memory of WalkBlocks: stages of values [64][64], swizzled; the column of ones that the
// weights are multiplied with, [16][8], swizzled; stages of the columns of the tiles I and J of the
// keys [2][64][8]; with a decay gate stages of G of the tokens and of the last token of their block
// [2][64].
struct WalkMemory {
  static constexpr int kValues = kWalkPart * kSwizzledRow;  // elements
  static constexpr int kOnes = 16 * kSwizzledRow;           // elements
  static constexpr int kKeys = 2 * kWalkPart * 8;           // elements
  static constexpr int kDecaySums = 2 * kWalkPart;          // floats
  static constexpr int64_t Bytes(bool gated) {
    return (kWalkStages * (kValues + kKeys) + kOnes) * 2 +
           (gated ? kWalkStages * kDecaySums * 4 : 0);
  }
  Bf16 *values, *ones, *keys;
  float* decay_sums;
  __device__ explicit WalkMemory(Bf16* memory)
      : values(memory),
        ones(values + kWalkStages * kValues),
        keys(ones + kOnes),
        decay_sums(reinterpret_cast<float*>(keys + kWalkStages * kKeys)) {}
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

// Copies the parts of WalkBlocks, each to the next stage: 64 tokens of a block, or what is left of
// it.
template <bool GATED>
class WalkLoader {
 public:
  __device__ WalkLoader(const WalkRows& rows, int I, int J, const WalkMemory& memory)
      : left_(rows.tokens), of_block_(rows.block), block_(rows.block) {
    const int thread = threadIdx.x, row = thread / 8, chunk = thread % 8;
    const int key = thread % kWalkPart, tile = thread < kWalkPart ? I : J;
    values_ = rows.values.row(row) + 8 * chunk;
    value_stride_ = rows.values.stride;
    value_step_ = kWalkPart * value_stride_;
    keys_ = rows.keys.row(key) + 8 * tile;
    key_stride_ = rows.keys.stride;
    key_step_ = kWalkPart * key_stride_;
    to_values_ = memory.values + SwizzledChunk(row, chunk);
    to_keys_ = memory.keys + thread * 8;
    if constexpr (GATED) {
      decay_sums_ = rows.decay_sums + key;
      to_sums_ = memory.decay_sums + key;
    }
  }

  // Starts the copy of the next part, if there is one.
  __device__ __forceinline__ void Next() {
    if (left_ >= kWalkPart && of_block_ >= kWalkPart) {
      Copy<true>(kWalkPart);
      Advance(kWalkPart, value_step_, key_step_);
    } else if (left_ > 0) {
      const int step = min(kWalkPart, of_block_);
      Copy<false>(left_ < step ? static_cast<int>(left_) : step);
      Advance(step, step * value_stride_, step * key_stride_);
    }
    CommitCopies();
  }

 private:
  __device__ __forceinline__ void Advance(int step, int64_t of_values, int64_t of_keys) {
    values_ += of_values;
    keys_ += of_keys;
    if constexpr (GATED) decay_sums_ += step;
    left_ -= step;
    of_block_ -= step;
    if (of_block_ == 0) of_block_ = block_;
    if (++stage_ == kWalkStages) stage_ = 0;
  }

  // Every thread copies four chunks of the values, 16 rows apart, and one of the keys.
  template <bool kWhole>
  __device__ __forceinline__ void Copy(int count) {
    constexpr int kStep = kWalkThreads / 8;
    const int row = static_cast<int>(threadIdx.x) / 8;
    const int key = static_cast<int>(threadIdx.x) % kWalkPart;
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
      if (threadIdx.x >= kWalkPart) CopyDecaySums(key, inside);
    }
  }

  // Of the token whose key this thread copies for tile J, which it scales later.
  __device__ __forceinline__ void CopyDecaySums(int key, bool inside) {
    float* to = to_sums_ + stage_ * WalkMemory::kDecaySums;
    const float* part = decay_sums_ - key;
    const int block_end = left_ < of_block_ ? static_cast<int>(left_) : of_block_;
    CopyAsync4(to, inside ? decay_sums_ : part, inside);
    CopyAsync4(to + kWalkPart, part + block_end - 1, true);
  }

  // Of this thread: its first row of the next part, and its place in the first stage.
  const Bf16 *values_, *keys_;
  int64_t value_stride_, key_stride_;
  int64_t value_step_, key_step_;  // of whole parts
  Bf16 *to_values_, *to_keys_;
  const float* decay_sums_;  // with a decay gate, as to_sums_
  float* to_sums_;
  int64_t left_;  // tokens
  int of_block_;  // tokens of the current block that are left
  const int block_;
  int stage_ = 0;
};

// Multiplies the elements of tile J of the key that this thread has copied, which no other thread has
// seen yet, by e^(G_b - G_s).
__device__ __forceinline__ void DecayKey(const WalkMemory& memory, int stage) {
  if (threadIdx.x < kWalkPart) return;
  const float* sums = memory.decay_sums + stage * WalkMemory::kDecaySums + threadIdx.x % kWalkPart;
  const float factor = FastExp(sums[kWalkPart] - sums[0]);
  auto* key = reinterpret_cast<uint4*>(memory.keys + stage * WalkMemory::kKeys + threadIdx.x * 8);
  const uint4 pairs = *key;
  *key = {ScalePair(pairs.x, factor, factor), ScalePair(pairs.y, factor, factor),
          ScalePair(pairs.z, factor, factor), ScalePair(pairs.w, factor, factor)};
}

// The features of a part as A fragments. keys: the tiles I and J of 64 tokens [2][64][8].
__device__ __forceinline__ void FeaturesOfKeys(const Bf16* keys, uint32_t (&a)[4][4]) {
  const int lane = threadIdx.x % kWarpSize, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // x_i of tokens 0-7, 8-15; x_j of the same; i, j = lane / 4.
    uint32_t x[4];
    LoadMatrix4T(x, keys + (lane / 16 * kWalkPart + 16 * k + lane % 16) * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#if defined(POLYSKETCH_FAULT_SWAPPED_LANE)
      const int from = (2 * warp + half) * 4 + (t ^ 1);
#else
      const int from = (2 * warp + half) * 4 + t;
#endif
      a[k][half] = MultiplyBf16(__shfl_sync(kFullWarp, x[0], from), x[2]);
      a[k][2 + half] = MultiplyBf16(__shfl_sync(kFullWarp, x[1], from), x[3]);
    }
  }
}

// blockIdx.x: a pair of tiles. Calls after(block, &state) when `block` has been added. `state` holds
// the state before the first block.
//
// The products of a part run while the features of the next one are made. So a part's stage is free
// only after the barrier of the part after the next.
template <bool GATED, typename After>
__device__ __forceinline__ void WalkBlocks(const WalkRows& rows, int tiles, WalkSums* state,
                                           const After& after) {
  int I = 0, J = 0;
  TilesOf(static_cast<int>(blockIdx.x), tiles, &I, &J);
  const WalkMemory memory(SharedMemory<Bf16>());
  WalkLoader<GATED> loader(rows, I, J, memory);
  for (int i = 0; i < kWalkAhead; ++i) loader.Next();
  if (threadIdx.x < 16) {
    *reinterpret_cast<uint4*>(memory.ones + SwizzledChunk(static_cast<int>(threadIdx.x), 0)) = {
        0x3f80u, 0, 0, 0};
  }

  const int parts_of_block = (rows.block + kWalkPart - 1) / kWalkPart;
  const int blocks = static_cast<int>((rows.tokens + rows.block - 1) / rows.block);
  WalkSums sums;
  float kept = 1;  // of the state, by the block in `sums`
  const auto add = [&] {
    if constexpr (GATED) {
      state->Decay(kept, sums);
    } else {
      state->Add(sums);
    }
  };
  int stage = 0;
  for (int block = 0; block < blocks; ++block) {
    for (int part = 0; part < parts_of_block; ++part) {
      WaitCopies<kWalkAhead - 1>();
      if constexpr (GATED) DecayKey(memory, stage);
      FenceForProducts();
#if !defined(POLYSKETCH_FAULT_WALK_BARRIER)
      __syncthreads();  // all threads see this part and have ended the products of the last but one
#endif
      uint32_t a[4][4];
      FeaturesOfKeys(memory.keys + stage * WalkMemory::kKeys, a);
      WaitProducts();  // of the part before
      if (part == 0 && block > 0) {
        add();
        after(block - 1, state);
      }
      if (GATED && part == 0) {
        kept = expf(memory.decay_sums[stage * WalkMemory::kDecaySums + kWalkPart]);
      }
      BeginProducts();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        GroupProduct(sums.tiles, a[k],
                     memory.values + stage * WalkMemory::kValues + 16 * k * kSwizzledRow,
                     memory.ones, k > 0 || part > 0);
      }
      CommitProducts();
      loader.Next();
      if (++stage == kWalkStages) stage = 0;
    }
  }
  WaitProducts();
  WaitCopies<0>();
  add();
  after(blocks - 1, state);
}

// The first feature of this warp.
__device__ __forceinline__ int WalkFeature() {
  return static_cast<int>(blockIdx.x) * kWalkFeatures +
         static_cast<int>(threadIdx.x) / kWarpSize * 16;
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

// Counts what each warp of a walk has stored, so that queries can begin before the walk ends: a
// kernel launched early waits for the counters of all warps (Await). A warp counts a state
// when it stores the next one, since it would wait for a store that it has just begun.
struct WalkProgress {
  int32_t* counters = nullptr;  // [walk][head][features / 16]
  int features = 0, heads = 0;

  __host__ __device__ int of_head() const { return WalkCounters(features); }
  __device__ __forceinline__ int32_t* Of(int64_t walk, int head) const {
    return counters + (walk * heads + head) * of_head();
  }
  // All lanes of a warp have stored `count` states.
  __device__ __forceinline__ void Add(int64_t walk, int head, int feature, int count) const {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) Publish(Of(walk, head) + feature / 16, count);
  }
  // Waits until every warp has stored `count` states. The caller has a barrier after it.
  __device__ __forceinline__ void Await(int64_t walk, int head, int count) const {
    for (int i = threadIdx.x; i < of_head(); i += blockDim.x) {
      AwaitCounter(Of(walk, head) + i, count);
    }
  }
};

// Stores a state as queries read it: S [features][64] rounded, z.
__device__ __forceinline__ void StoreSnapshot(int feature, const WalkSums& state, Bf16* S,
                                              float* z) {
  const int t = threadIdx.x % 4;
  ForRows<1>([&](int, int half, int row) {
    const int f = feature + row;
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = state.tiles[n + i][2 * half], high = state.tiles[n + i][2 * half + 1];
        words[i] =
            static_cast<uint32_t>(UpperPlane(FloatBits(high))) << 16 | UpperPlane(FloatBits(low));
      }
      *reinterpret_cast<uint4*>(S + f * 64 + 8 * (n + t)) = TransposeQuad(words);
    }
    if (t == 0) z[f] = state.tiles[8][2 * half];
  });
}

}  // namespace polysketch::cuda
