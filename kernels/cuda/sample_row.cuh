// Sampling from a row of logits (kernels/row_sampling.h) by several thread blocks: what one of them
// computes of its slice of the row, and what the last one computes of the whole row. Every sum on
// which a token depends has the order of engine/sampler, so the token is the same.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/planted.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/row_sampling.h"

namespace polysketch::cuda {

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / kWarpSize;
// A thread block has a slice of a row: a block of logits for each warp.
constexpr int kSliceBlocks = kSampleWarps;
constexpr int kLogitBlock = static_cast<int>(kRowBlock);
constexpr int kBlockLanes = static_cast<int>(kRowLanes);
static_assert(kWarpSize == 2 * kBlockLanes);

// A logit that a bias or a penalty changes, and its value before.
struct Edit {
  int32_t token, count;
  float bias, before;
};

// A query on the device.
struct SampleJob : SampleParameters {
  int32_t biases = 0, counts = 0;  // numbers of edits: first the biases, then the counts
  int64_t first_edit = 0;
};

struct SampleOutput {
  SampleResult::Kind kind;
  int32_t token, count;
  float max_logit;
  double total_weight;
};

// Shared memory of a row of `blocks` blocks.
struct RowMemory {
  unsigned long long* keys;  // [kSampleWarps]
  double* doubles;           // [2]
  float* maxima;             // [blocks]
  float* sums;               // [blocks]
  float* weights;            // [kLogitBlock]
  int* counts;               // [blocks]
  int* block;                // [1]

  static size_t Bytes(int blocks) {
    return kSampleWarps * 8 + 2 * 8 + (3 * static_cast<size_t>(blocks) + kLogitBlock + 1) * 4;
  }
  __device__ explicit RowMemory(int blocks) {
    keys = SharedMemory<unsigned long long>();
    doubles = reinterpret_cast<double*>(keys + kSampleWarps);
    maxima = reinterpret_cast<float*>(doubles + 2);
    sums = maxima + blocks;
    weights = sums + blocks;
    counts = reinterpret_cast<int*>(weights + kLogitBlock);
    block = counts + blocks;
  }
};

struct Row {
  float* logits;
  int width, blocks;
  __device__ int Size(int block) const { return min(kLogitBlock, width - block * kLogitBlock); }
  __device__ int slices() const { return (blocks + kSliceBlocks - 1) / kSliceBlocks; }
};

// What the thread blocks of a row pass to each other, in device memory.
struct RowExchange {
  unsigned long long* keys;  // [slices]: of the highest logits
  float* maxima;             // [blocks]: of the logits
  float* sums;               // [blocks]: of the weights
  int32_t* arrivals;         // [1], zero between two kernels
};

// Orders logits by size and, among equals (-0 equals 0), the lower id above the higher one; NaN and
// infinities are above all.
constexpr unsigned long long kNotFiniteKey = ~0ull;
__device__ inline unsigned long long KeyOf(float logit, int token) {
  const uint32_t bits = logit == 0 ? 0 : FloatBits(logit);
  if ((bits & 0x7fffffffu) >= 0x7f800000u) return kNotFiniteKey;
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 |
         (0xffffffffu - static_cast<uint32_t>(token));
}
__device__ inline float LogitOf(unsigned long long key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return BitsFloat((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}
__device__ inline int TokenOf(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ inline unsigned long long WarpLargest(unsigned long long key) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const unsigned long long other = __shfl_xor_sync(kFullWarp, key, distance);
    if (other > key) key = other;
  }
  return key;
}

// Computes the maxima of the slice's blocks, a warp each, and the key of the slice's highest logit.
__device__ inline void StoreMaxima(const Row& row, int slice, const RowExchange& exchange,
                                   const RowMemory& memory) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int block = slice * kSliceBlocks + warp;
  unsigned long long key = 0;
  if (block < row.blocks) {
    for (int i = lane; i < row.Size(block); i += kWarpSize) {
      const int token = block * kLogitBlock + i;
      const unsigned long long own = KeyOf(row.logits[token], token);
      if (own > key) key = own;
    }
    key = WarpLargest(key);
    if (lane == 0) exchange.maxima[block] = LogitOf(key);
  }
  if (lane == 0) memory.keys[warp] = key;
  __syncthreads();
  key = WarpLargest(memory.keys[lane % kSampleWarps]);
  if (threadIdx.x == 0) exchange.keys[slice] = key;
}

// Returns the key of the row's highest logit to all threads.
__device__ inline unsigned long long HighestKey(const Row& row, const RowExchange& exchange) {
  unsigned long long highest = 0;
  for (int i = threadIdx.x % kWarpSize; i < row.slices(); i += kWarpSize) {
    if (exchange.keys[i] > highest) highest = exchange.keys[i];
  }
  return WarpLargest(highest);
}

// Returns to all threads whether this thread block is the last one of its row to come here. What the
// others have stored before is visible to it. The counter is zero again after the last one.
__device__ inline bool IsLastOfRow(const Row& row, const RowExchange& exchange,
                                   const RowMemory& memory) {
  __syncthreads();
  if (threadIdx.x == 0) {
    bool last = CountArrival(exchange.arrivals) + 1 == row.slices();
    if (PS_PLANTED(EARLY_ANSWER)) last = blockIdx.x + 1 == gridDim.x;
    if (last) *exchange.arrivals = 0;
    *memory.block = last ? 1 : 0;
  }
  __syncthreads();
  const bool last = *memory.block != 0;
  __syncthreads();  // the next use overwrites memory.block
  return last;
}

__device__ inline float WeightOf(float logit, float max, const SampleJob& job) {
  return NegativeExpInline((logit - max) * job.inverse_temperature);
}

// Computes the sums of the weights of the slice's blocks. Half a warp sums a block; each thread
// computes one of its partial sums.
__device__ inline void StoreSums(const Row& row, int slice, float max, const SampleJob& job,
                                 const RowExchange& exchange) {
  const int lane = threadIdx.x % kBlockLanes, half = threadIdx.x / kBlockLanes;
  if (threadIdx.x >= kSliceBlocks * kBlockLanes) return;  // whole warps
  const int block = slice * kSliceBlocks + half;
  float partial = 0;
  if (block < row.blocks) {
    for (int i = lane; i < row.Size(block); i += kBlockLanes) {
      partial += WeightOf(row.logits[block * kLogitBlock + i], max, job);
    }
  }
  float sum = 0;
  for (int other = 0; other < kBlockLanes; ++other) {
    sum +=
        __shfl_sync(kFullWarp, partial,
                    static_cast<int>(threadIdx.x % kWarpSize) / kBlockLanes * kBlockLanes + other);
  }
  if (lane == 0 && block < row.blocks) exchange.sums[block] = sum;
}

// Copies the results of all blocks of the row to shared memory. With weights, also stores the sum of
// their sums in doubles[0].
__device__ inline void LoadBlocks(const Row& row, bool weights, const RowExchange& exchange,
                                  const RowMemory& memory) {
  for (int i = threadIdx.x; i < row.blocks; i += kSampleThreads) {
    memory.maxima[i] = exchange.maxima[i];
    if (weights) memory.sums[i] = exchange.sums[i];
  }
  __syncthreads();
  if (!weights) return;
  if (threadIdx.x == 0) {
    double total = 0;
    for (int block = 0; block < row.blocks; ++block) total += memory.sums[block];
    memory.doubles[0] = total;
  }
  __syncthreads();
}

// As Pass in engine/sampler/sampler.cc.
__device__ inline int Pass(const float* weights, int count, double target, double* sum) {
  double before = *sum;
  int last = 0;
  for (int i = 0; i < count; ++i) {
    if (weights[i] == 0) continue;
    *sum = before;
    last = i;
    before += weights[i];
    if (before > target) break;
  }
  return last;
}

// As SampleFromRow in engine/sampler/sampler.cc. Returns the token to thread 0.
__device__ inline int SampleToken(const Row& row, float max, const SampleJob& job,
                                  const RowMemory& memory) {
  const double target = job.uniform * memory.doubles[0];
  double before = 0;
  if (threadIdx.x == 0) *memory.block = Pass(memory.sums, row.blocks, target, &before);
  __syncthreads();
  const int block = *memory.block;
  for (int i = threadIdx.x; i < row.Size(block); i += kSampleThreads) {
    memory.weights[i] = WeightOf(row.logits[block * kLogitBlock + i], max, job);
  }
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  return block * kLogitBlock + Pass(memory.weights, row.Size(block), target, &before);
}

// Returns the k-th highest of the maxima to all threads.
__device__ inline float KthMaximum(const Row& row, int k, const RowMemory& memory) {
  for (int i = threadIdx.x; i < row.blocks; i += kSampleThreads) {
    const float own = memory.maxima[i];
    int above = 0, equal = 0;
    for (int j = 0; j < row.blocks; ++j) {
      above += memory.maxima[j] > own ? 1 : 0;
      equal += memory.maxima[j] == own ? 1 : 0;
    }
    // All threads for which this holds write the same value.
    if (above < k && k <= above + equal) memory.weights[0] = own;
  }
  __syncthreads();
  return memory.weights[0];
}

// Candidates are the tokens whose weight, or logit, is at least `min`.
struct Bound {
  bool by_weight;
  float min, max_logit;
  __device__ bool Includes(float logit, const SampleJob& job) const {
    return (by_weight ? WeightOf(logit, max_logit, job) : logit) >= min;
  }
  // False if a block has no candidate.
  __device__ bool MayInclude(int block, const RowMemory& memory) const {
    return (by_weight ? memory.sums : memory.maxima)[block] >= min;
  }
};

__device__ inline Bound BoundOf(const Row& row, float max, const SampleJob& job,
                                const RowMemory& memory) {
  if (job.kind == SampleQuery::Kind::kTopPCandidates) {
    return {true, static_cast<float>(job.tail_share * memory.doubles[0] / row.width), max};
  }
  float lowest = fmaxf(-0x1.fffffep127f, static_cast<float>(max + job.min_logit_offset));
  if (job.top_k > 0 && job.top_k <= row.blocks) {
    lowest = fmaxf(lowest, KthMaximum(row, job.top_k, memory));
  }
  return {false, lowest, max};
}

// Each lane has eight neighbours of a block. Returns the number of candidates among them.
constexpr int kLaneTokens = kLogitBlock / kWarpSize;
__device__ inline int CountOfLane(const Row& row, int block, const Bound& bound,
                                  const SampleJob& job) {
  int count = 0;
  for (int i = 0; i < kLaneTokens; ++i) {
    const int in_block = static_cast<int>(threadIdx.x) % kWarpSize * kLaneTokens + i;
    if (in_block >= row.Size(block)) break;
    count += bound.Includes(row.logits[block * kLogitBlock + in_block], job) ? 1 : 0;
  }
  return count;
}

// Returns the sum over the lanes before this one, and in *total the sum over all lanes.
__device__ inline int SumBefore(int count, int* total) {
  const int lane = threadIdx.x % kWarpSize;
  int sum = count;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int other = __shfl_sync(kFullWarp, sum, lane < distance ? lane : lane - distance);
    if (lane >= distance) sum += other;
  }
  *total = __shfl_sync(kFullWarp, sum, kWarpSize - 1);
  return sum - count;
}

// Writes the candidates in order of id, unless there are more than kMaxCandidates. Returns their
// number.
__device__ inline int WriteCandidates(const Row& row, const Bound& bound, const SampleJob& job,
                                      const RowMemory& memory, SampleCandidate* out) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  for (int block = warp; block < row.blocks; block += kSampleWarps) {
    int total = 0;
    if (bound.MayInclude(block, memory)) SumBefore(CountOfLane(row, block, bound, job), &total);
    if (lane == 0) memory.counts[block] = total;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int before = 0;
    for (int block = 0; block < row.blocks; ++block) {
      const int count = memory.counts[block];
      memory.counts[block] = before;
      before += count;
    }
    *memory.block = before;
  }
  __syncthreads();
  const int count = *memory.block;
  if (count > static_cast<int>(SampleQuery::kMaxCandidates)) return count;
  for (int block = warp; block < row.blocks; block += kSampleWarps) {
    if (!bound.MayInclude(block, memory)) continue;
    int total = 0;
    int at = memory.counts[block] + SumBefore(CountOfLane(row, block, bound, job), &total);
    for (int i = 0; i < kLaneTokens; ++i) {
      const int token = block * kLogitBlock + lane * kLaneTokens + i;
      if (token >= row.width) break;
      if (bound.Includes(row.logits[token], job)) out[at++] = {row.logits[token], token};
    }
  }
  return count;
}

// Edits the logits of a slice as Sampler::Adjust does, and keeps their previous values in the edits.
__device__ inline void ApplyEdits(const SampleJob& job, int slice, Edit* edits, float* logits) {
  const auto in_slice = [&](int i) {
    return edits[i].token / (kLogitBlock * kSliceBlocks) == slice;
  };
  for (int i = threadIdx.x; i < job.biases; i += kSampleThreads) {
    if (!in_slice(i)) continue;
    float& logit = logits[edits[i].token];
    edits[i].before = logit;
    logit += edits[i].bias;
  }
  __syncthreads();
  for (int i = job.biases + threadIdx.x; i < job.biases + job.counts; i += kSampleThreads) {
    if (!in_slice(i)) continue;
    float& logit = logits[edits[i].token];
    edits[i].before = logit;
    float edited = logit > 0 ? logit / job.repetition_penalty : logit * job.repetition_penalty;
    edited -= job.frequency_penalty * static_cast<float>(edits[i].count);
    if (edits[i].count > 0) edited -= job.presence_penalty;
    logit = edited;
  }
  __syncthreads();
}

__device__ inline void UndoEdits(const SampleJob& job, const Edit* edits, float* logits) {
  __syncthreads();
  for (int i = job.biases + threadIdx.x; i < job.biases + job.counts; i += kSampleThreads) {
    logits[edits[i].token] = edits[i].before;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < job.biases; i += kSampleThreads) {
    logits[edits[i].token] = edits[i].before;
  }
}

// Returns the sum of the weights of at least `min` to all threads, in any order: relative error
// 1e-12.
__device__ inline double SumFrom(const Row& row, float min, const Bound& bound,
                                 const SampleJob& job, const RowMemory& memory) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  double sum = 0;
  for (int block = warp; block < row.blocks; block += kSampleWarps) {
    if (memory.sums[block] < min) continue;
    for (int i = lane; i < row.Size(block); i += kWarpSize) {
      const float weight = WeightOf(row.logits[block * kLogitBlock + i], bound.max_logit, job);
      if (weight >= min) sum += weight;
    }
  }
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, distance);
  }
  auto* of_warps = reinterpret_cast<double*>(memory.keys);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < kSampleWarps; ++i) sum += of_warps[i];
  __syncthreads();  // the next call overwrites of_warps
  return sum;
}

// Returns the lowest weight of the fewest highest buckets that certainly hold top_p of the sum, by
// bisection. KeepMass of engine/sampler/sampler.cc reads no weight below it.
__device__ inline float MinWeightOfTopP(const Row& row, const Bound& bound, const SampleJob& job,
                                        const RowMemory& memory) {
  const double needed = job.top_p * memory.doubles[0] * (1 + 1e-9);
  int holds = static_cast<int>(FloatBits(bound.min) >> kWeightBucketShift), fails = kWeightBuckets;
  while (fails - holds > 1) {
    const int bucket = holds + (fails - holds) / 2;
    const float min = BitsFloat(static_cast<uint32_t>(bucket) << kWeightBucketShift);
    (SumFrom(row, min, bound, job, memory) >= needed ? holds : fails) = bucket;
  }
  const float min = BitsFloat(static_cast<uint32_t>(holds) << kWeightBucketShift);
  return min > bound.min ? min : bound.min;
}

// Whether a query reads sums of weights.
__device__ __host__ constexpr bool ReadsWeights(SampleQuery::Kind kind) {
  return kind == SampleQuery::Kind::kMultinomial || kind == SampleQuery::Kind::kTopPCandidates;
}

// The answer for a row whose blocks' results are in shared memory. Returns it to thread 0.
__device__ inline SampleOutput Answer(const Row& row, unsigned long long highest,
                                      const SampleJob& job, const RowMemory& memory,
                                      SampleCandidate* candidates) {
  using Kind = SampleResult::Kind;
  if (highest == kNotFiniteKey) return {Kind::kNotFinite, 0, 0, 0, 0};
  const float max = LogitOf(highest);
  if (job.kind == SampleQuery::Kind::kArgmax) return {Kind::kToken, TokenOf(highest), 0, max, 0};
  if (job.kind == SampleQuery::Kind::kMultinomial) {
    return {Kind::kToken, SampleToken(row, max, job, memory), 0, max, memory.doubles[0]};
  }
  constexpr int kMax = static_cast<int>(SampleQuery::kMaxCandidates);
  Bound bound = BoundOf(row, max, job, memory);
  int count = WriteCandidates(row, bound, job, memory, candidates);
  if (count > kMax && bound.by_weight) {
    bound.min = MinWeightOfTopP(row, bound, job, memory);
    count = WriteCandidates(row, bound, job, memory, candidates);
  }
  const bool fits = count <= kMax;
  return {fits ? Kind::kCandidates : Kind::kTooMany, 0, fits ? count : 0, max,
          bound.by_weight ? memory.doubles[0] : 0};
}

}  // namespace polysketch::cuda
