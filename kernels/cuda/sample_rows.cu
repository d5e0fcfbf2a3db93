// Sampling from rows of logits (kernels/row_sampling.h), one thread block for each row. Every sum
// on which a token depends has the order of engine/sampler, so the token is the same.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kBlock = static_cast<int>(kRowBlock);
constexpr int kLanes = static_cast<int>(kRowLanes);
static_assert(kWarpSize == 2 * kLanes);

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
  unsigned long long* keys;  // [kWarps]
  double* doubles;           // [2]
  float* maxima;             // [blocks]
  float* sums;               // [blocks]
  float* weights;            // [kBlock]
  int* counts;               // [blocks]
  int* block;                // [1]

  static size_t Bytes(int blocks) {
    return kWarps * 8 + 2 * 8 + (3 * static_cast<size_t>(blocks) + kBlock + 1) * 4;
  }
  __device__ explicit RowMemory(int blocks) {
    keys = SharedMemory<unsigned long long>();
    doubles = reinterpret_cast<double*>(keys + kWarps);
    maxima = reinterpret_cast<float*>(doubles + 2);
    sums = maxima + blocks;
    weights = sums + blocks;
    counts = reinterpret_cast<int*>(weights + kBlock);
    block = counts + blocks;
  }
};

struct Row {
  float* logits;
  int width, blocks;
  __device__ int Size(int block) const { return min(kBlock, width - block * kBlock); }
};

// Orders logits by size and, among equals (-0 equals 0), the lower id above the higher one; NaN and
// infinities are above all.
constexpr unsigned long long kNotFiniteKey = ~0ull;
__device__ unsigned long long KeyOf(float logit, int token) {
  const uint32_t bits = logit == 0 ? 0 : FloatBits(logit);
  if ((bits & 0x7fffffffu) >= 0x7f800000u) return kNotFiniteKey;
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 |
         (0xffffffffu - static_cast<uint32_t>(token));
}
__device__ float LogitOf(unsigned long long key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return BitsFloat((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}
__device__ int TokenOf(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ unsigned long long WarpLargest(unsigned long long key) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const unsigned long long other = __shfl_xor_sync(kFullWarp, key, distance);
    if (other > key) key = other;
  }
  return key;
}

// Computes the maxima of the blocks. Returns the key of the highest logit to all threads.
__device__ unsigned long long FindMaxima(const Row& row, const RowMemory& memory) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  unsigned long long highest = 0;
  for (int block = warp; block < row.blocks; block += kWarps) {
    unsigned long long key = 0;
    for (int i = lane; i < row.Size(block); i += kWarpSize) {
      const int token = block * kBlock + i;
      const unsigned long long own = KeyOf(row.logits[token], token);
      if (own > key) key = own;
    }
    key = WarpLargest(key);
    if (lane == 0) memory.maxima[block] = LogitOf(key);
    if (key > highest) highest = key;
  }
  if (lane == 0) memory.keys[warp] = highest;
  __syncthreads();
  return WarpLargest(memory.keys[lane % kWarps]);
}

__device__ float WeightOf(float logit, float max, const SampleJob& job) {
  return NegativeExpInline((logit - max) * job.inverse_temperature);
}

// Computes the sums of the weights of the blocks, and in doubles[0] their sum. Half a warp sums a
// block; each thread computes one of its partial sums.
__device__ void SumWeights(const Row& row, float max, const SampleJob& job,
                           const RowMemory& memory) {
  const int lane = threadIdx.x % kLanes, half = threadIdx.x / kLanes;
  constexpr int kHalves = kThreads / kLanes;
  // Both halves of a warp run the same number of iterations.
  for (int first = 0; first < row.blocks; first += kHalves) {
    const int block = first + half;
    float partial = 0;
    if (block < row.blocks) {
      for (int i = lane; i < row.Size(block); i += kLanes) {
        partial += WeightOf(row.logits[block * kBlock + i], max, job);
      }
    }
    float sum = 0;
    for (int other = 0; other < kLanes; ++other) {
      sum += __shfl_sync(kFullWarp, partial,
                         static_cast<int>(threadIdx.x % kWarpSize) / kLanes * kLanes + other);
    }
    if (lane == 0 && block < row.blocks) memory.sums[block] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (int block = 0; block < row.blocks; ++block) total += memory.sums[block];
    memory.doubles[0] = total;
  }
  __syncthreads();
}

// As Pass in engine/sampler/sampler.cc.
__device__ int Pass(const float* weights, int count, double target, double* sum) {
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
__device__ int SampleToken(const Row& row, float max, const SampleJob& job,
                           const RowMemory& memory) {
  const double target = job.uniform * memory.doubles[0];
  double before = 0;
  if (threadIdx.x == 0) *memory.block = Pass(memory.sums, row.blocks, target, &before);
  __syncthreads();
  const int block = *memory.block;
  for (int i = threadIdx.x; i < row.Size(block); i += kThreads) {
    memory.weights[i] = WeightOf(row.logits[block * kBlock + i], max, job);
  }
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  return block * kBlock + Pass(memory.weights, row.Size(block), target, &before);
}

// Returns the k-th highest of the maxima to all threads.
__device__ float KthMaximum(const Row& row, int k, const RowMemory& memory) {
  for (int i = threadIdx.x; i < row.blocks; i += kThreads) {
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

__device__ Bound BoundOf(const Row& row, float max, const SampleJob& job, const RowMemory& memory) {
  if (job.kind == SampleQuery::Kind::kTopPCandidates) {
    SumWeights(row, max, job, memory);
    return {true, static_cast<float>(job.tail_share * memory.doubles[0] / row.width), max};
  }
  float lowest = fmaxf(-0x1.fffffep127f, static_cast<float>(max + job.min_logit_offset));
  if (job.top_k > 0 && job.top_k <= row.blocks) {
    lowest = fmaxf(lowest, KthMaximum(row, job.top_k, memory));
  }
  return {false, lowest, max};
}

// Each lane has eight neighbours of a block. Returns the number of candidates among them.
constexpr int kLaneTokens = kBlock / kWarpSize;
__device__ int CountOfLane(const Row& row, int block, const Bound& bound, const SampleJob& job) {
  int count = 0;
  for (int i = 0; i < kLaneTokens; ++i) {
    const int in_block = static_cast<int>(threadIdx.x) % kWarpSize * kLaneTokens + i;
    if (in_block >= row.Size(block)) break;
    count += bound.Includes(row.logits[block * kBlock + in_block], job) ? 1 : 0;
  }
  return count;
}

// Returns the sum over the lanes before this one, and in *total the sum over all lanes.
__device__ int SumBefore(int count, int* total) {
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
__device__ int WriteCandidates(const Row& row, const Bound& bound, const SampleJob& job,
                               const RowMemory& memory, SampleCandidate* out) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  for (int block = warp; block < row.blocks; block += kWarps) {
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
  for (int block = warp; block < row.blocks; block += kWarps) {
    if (!bound.MayInclude(block, memory)) continue;
    int total = 0;
    int at = memory.counts[block] + SumBefore(CountOfLane(row, block, bound, job), &total);
    for (int i = 0; i < kLaneTokens; ++i) {
      const int token = block * kBlock + lane * kLaneTokens + i;
      if (token >= row.width) break;
      if (bound.Includes(row.logits[token], job)) out[at++] = {row.logits[token], token};
    }
  }
  return count;
}

// Edits the logits as Sampler::Adjust does, and keeps their previous values in the edits.
__device__ void ApplyEdits(const SampleJob& job, Edit* edits, float* logits) {
  for (int i = threadIdx.x; i < job.biases; i += kThreads) {
    float& logit = logits[edits[i].token];
    edits[i].before = logit;
    logit += edits[i].bias;
  }
  __syncthreads();
  for (int i = job.biases + threadIdx.x; i < job.biases + job.counts; i += kThreads) {
    float& logit = logits[edits[i].token];
    edits[i].before = logit;
    float edited = logit > 0 ? logit / job.repetition_penalty : logit * job.repetition_penalty;
    edited -= job.frequency_penalty * static_cast<float>(edits[i].count);
    if (edits[i].count > 0) edited -= job.presence_penalty;
    logit = edited;
  }
  __syncthreads();
}

__device__ void UndoEdits(const SampleJob& job, const Edit* edits, float* logits) {
  __syncthreads();
  for (int i = job.biases + threadIdx.x; i < job.biases + job.counts; i += kThreads) {
    logits[edits[i].token] = edits[i].before;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < job.biases; i += kThreads) {
    logits[edits[i].token] = edits[i].before;
  }
}

// Returns the sum of the weights of at least `min` to all threads, in any order: relative error
// 1e-12.
__device__ double SumFrom(const Row& row, float min, const Bound& bound, const SampleJob& job,
                          const RowMemory& memory) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  double sum = 0;
  for (int block = warp; block < row.blocks; block += kWarps) {
    if (memory.sums[block] < min) continue;
    for (int i = lane; i < row.Size(block); i += kWarpSize) {
      const float weight = WeightOf(row.logits[block * kBlock + i], bound.max_logit, job);
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
  for (int i = 0; i < kWarps; ++i) sum += of_warps[i];
  __syncthreads();  // the next call overwrites of_warps
  return sum;
}

// Returns the lowest weight of the fewest highest buckets that certainly hold top_p of the sum, by
// bisection. KeepMass of engine/sampler/sampler.cc reads no weight below it.
__device__ float MinWeightOfTopP(const Row& row, const Bound& bound, const SampleJob& job,
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

// Returns the answer to thread 0.
__device__ SampleOutput Answer(const Row& row, const SampleJob& job, SampleCandidate* candidates) {
  using Kind = SampleResult::Kind;
  const RowMemory memory(row.blocks);
  const unsigned long long highest = FindMaxima(row, memory);
  if (highest == kNotFiniteKey) return {Kind::kNotFinite, 0, 0, 0, 0};
  const float max = LogitOf(highest);
  if (job.kind == SampleQuery::Kind::kArgmax) return {Kind::kToken, TokenOf(highest), 0, max, 0};
  if (job.kind == SampleQuery::Kind::kMultinomial) {
    SumWeights(row, max, job, memory);
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

// blockIdx.x: row.
__global__ void __launch_bounds__(kThreads)
    SampleKernel(float* logits, int width, const SampleJob* jobs, Edit* edits,
                 SampleOutput* results, SampleCandidate* candidates) {
  const SampleJob& job = jobs[blockIdx.x];
  if (job.kind == SampleQuery::Kind::kNone) {
    if (threadIdx.x == 0) results[blockIdx.x] = {SampleResult::Kind::kNone, 0, 0, 0, 0};
    return;
  }
  const Row row{logits + static_cast<int64_t>(blockIdx.x) * width, width,
                (width + kBlock - 1) / kBlock};
  ApplyEdits(job, edits + job.first_edit, row.logits);
  const SampleOutput result =
      Answer(row, job, candidates + blockIdx.x * SampleQuery::kMaxCandidates);
  UndoEdits(job, edits + job.first_edit, row.logits);
  if (threadIdx.x == 0) results[blockIdx.x] = result;
}

SampleJob JobOf(const SampleQuery& query, std::vector<Edit>* edits) {
  SampleJob job{query};
  if (query.kind == SampleQuery::Kind::kNone) return job;
  job.first_edit = std::ssize(*edits);
  job.biases = static_cast<int32_t>(query.bias.size());
  job.counts = static_cast<int32_t>(query.counts.size());
  for (const auto& [token, bias] : query.bias) edits->push_back({token, 0, bias, 0});
  for (const auto& [token, count] : query.counts) edits->push_back({token, count, 0, 0});
  return job;
}

template <typename T>
void Append(const std::vector<T>& values, std::vector<uint8_t>* bytes) {
  const size_t offset = bytes->size();
  bytes->resize(offset + values.size() * sizeof(T));
  if (!values.empty())
    std::memcpy(bytes->data() + offset, values.data(), values.size() * sizeof(T));
}

bool HasCandidates(const SampleQuery& query) {
  return query.kind == SampleQuery::Kind::kTopPCandidates ||
         query.kind == SampleQuery::Kind::kTopKCandidates;
}

constexpr size_t QueryBytes(size_t rows, size_t edits) {
  return rows * sizeof(SampleJob) + edits * sizeof(Edit);
}
constexpr size_t AnswerBytes(size_t rows) {
  return rows * (sizeof(SampleOutput) + SampleQuery::kMaxCandidates * sizeof(SampleCandidate));
}

}  // namespace

void CudaBackend::ReserveSampling() {
  constexpr size_t kRows = SampleQuery::kMaxRows;
  queries_.Grow(device_.get(), QueryBytes(kRows, kRows * SampleQuery::kMaxEdits));
  answers_.Grow(device_.get(), AnswerBytes(kRows));
  device_->Load(SampleKernel);
}

void CudaBackend::SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                             std::span<SampleResult> answers) {
  static_assert(sizeof(SampleJob) % 8 == 0 && sizeof(SampleOutput) % 8 == 0);
  PS_CHECK(queries.size() == answers.size());
  const size_t rows = queries.size();
  std::vector<SampleJob> jobs;
  std::vector<Edit> edits;
  for (const SampleQuery& query : queries) jobs.push_back(JobOf(query, &edits));
  host_queries_.clear();
  Append(jobs, &host_queries_);
  Append(edits, &host_queries_);
  uint8_t* to = queries_.Grow(device_.get(), host_queries_.size());
  device_->CopyIn(to, host_queries_.data(), host_queries_.size());

  const size_t results = rows * sizeof(SampleOutput);
  const size_t all = AnswerBytes(rows);
  uint8_t* from = answers_.Grow(device_.get(), all);
  const int blocks = static_cast<int>((width + kBlock - 1) / kBlock);
  device_->Launch(SampleKernel, dim3(static_cast<unsigned>(rows)), kThreads,
                  RowMemory::Bytes(blocks), logits, width, reinterpret_cast<SampleJob*>(to),
                  reinterpret_cast<Edit*>(to + rows * sizeof(SampleJob)),
                  reinterpret_cast<SampleOutput*>(from),
                  reinterpret_cast<SampleCandidate*>(from + results));
  // Candidates are copied only if a query returns candidates.
  const bool candidates = std::any_of(queries.begin(), queries.end(), HasCandidates);
  host_answers_.assign(all, 0);
  device_->CopyOut(host_answers_.data(), from, candidates ? all : results);
  for (size_t i = 0; i < rows; ++i) {
    SampleOutput result;
    std::memcpy(&result, host_answers_.data() + i * sizeof(result), sizeof(result));
    const auto* list = reinterpret_cast<const SampleCandidate*>(host_answers_.data() + results);
    answers[i] = {
        result.kind, result.token, result.max_logit, result.total_weight,
        std::span(list + i * SampleQuery::kMaxCandidates, static_cast<size_t>(result.count))};
  }
}

}  // namespace polysketch::cuda
