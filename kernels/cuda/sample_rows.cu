// Sampling from rows of logits (kernels/row_sampling.h), in one launch, or in two if a query reads
// sums of weights: these need the highest logit of the row first. The thread block that comes last,
// by a counter of its row, answers.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/sample_row.cuh"

namespace polysketch::cuda {
namespace {

// The arguments of both kernels. blockIdx: slice, row.
struct SampleBatch {
  float* logits;
  int width, blocks;
  const SampleJob* jobs;
  Edit* edits;
  RowExchange exchange;  // of all rows
  SampleOutput* results;
  SampleCandidate* candidates;

  __device__ Row row() const {
    return {logits + static_cast<int64_t>(blockIdx.y) * width, width, blocks};
  }
  __device__ RowExchange of_row() const {
    const int64_t row = blockIdx.y;
    return {exchange.keys + row * gridDim.x, exchange.maxima + row * blocks,
            exchange.sums + row * blocks, exchange.arrivals + row};
  }
};

// By the last thread block of a row.
__device__ void Finish(const SampleBatch& batch, const Row& row, const SampleJob& job,
                       unsigned long long highest, const RowMemory& memory) {
  const SampleOutput result =
      Answer(row, highest, job, memory,
             batch.candidates + static_cast<int64_t>(blockIdx.y) * SampleQuery::kMaxCandidates);
  UndoEdits(job, batch.edits + job.first_edit, row.logits);
  if (threadIdx.x == 0) batch.results[blockIdx.y] = result;
}

// Edits the logits, finds the highest ones, and answers the queries that read no weights.
__global__ void __launch_bounds__(kSampleThreads) SampleKernel(const SampleBatch batch) {
  AfterEarlierKernels();
  const SampleJob& job = batch.jobs[blockIdx.y];
  const int slice = static_cast<int>(blockIdx.x);
  if (job.kind == SampleQuery::Kind::kNone) {
    if (slice == 0 && threadIdx.x == 0) {
      batch.results[blockIdx.y] = {SampleResult::Kind::kNone, 0, 0, 0, 0};
    }
    return;
  }
  const Row row = batch.row();
  const RowExchange exchange = batch.of_row();
  const RowMemory memory(row.blocks);
  ApplyEdits(job, slice, batch.edits + job.first_edit, row.logits);
  StoreMaxima(row, slice, exchange, memory);
  if (!IsLastOfRow(row, exchange, memory)) return;
  const unsigned long long highest = HighestKey(row, exchange);
  if (ReadsWeights(job.kind) && highest != kNotFiniteKey) return;
  LoadBlocks(row, false, exchange, memory);
  Finish(batch, row, job, highest, memory);
}

// After SampleKernel: answers the queries that read weights.
__global__ void __launch_bounds__(kSampleThreads) WeighKernel(const SampleBatch batch) {
  AfterEarlierKernels();
  const SampleJob& job = batch.jobs[blockIdx.y];
  if (!ReadsWeights(job.kind)) return;
  const Row row = batch.row();
  const RowExchange exchange = batch.of_row();
  const unsigned long long highest = HighestKey(row, exchange);
  if (highest == kNotFiniteKey) return;  // answered
  const RowMemory memory(row.blocks);
  StoreSums(row, static_cast<int>(blockIdx.x), LogitOf(highest), job, exchange);
  if (!IsLastOfRow(row, exchange, memory)) return;
  LoadBlocks(row, true, exchange, memory);
  Finish(batch, row, job, highest, memory);
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

int BlocksOf(int64_t width) { return static_cast<int>((width + kLogitBlock - 1) / kLogitBlock); }
unsigned SlicesOf(int blocks) { return CeilDiv(blocks, kSliceBlocks); }

// Of RowExchange without the counters.
size_t ExchangeBytes(size_t rows, int blocks) {
  return rows * (SlicesOf(blocks) * sizeof(unsigned long long) +
                 2 * static_cast<size_t>(blocks) * sizeof(float));
}

}  // namespace

void CudaBackend::ReserveSampling() {
  constexpr size_t kRows = SampleQuery::kMaxRows;
  constexpr int64_t kMaxWidth = int64_t{1} << 20;  // wider rows take memory when they are sampled
  queries_.Grow(device_.get(), QueryBytes(kRows, kRows * SampleQuery::kMaxEdits));
  answers_.Grow(device_.get(), AnswerBytes(kRows));
  exchange_.Grow(device_.get(), ExchangeBytes(kRows, BlocksOf(kMaxWidth)));
  SampleArrivals();
  device_->Load(SampleKernel);
  device_->Load(WeighKernel);
}

int32_t* CudaBackend::SampleArrivals() {
  if (arrivals_.size() == 0) {
    arrivals_.Grow(device_.get(), SampleQuery::kMaxRows);
    device_->Zero(arrivals_.data(), SampleQuery::kMaxRows * sizeof(int32_t));
  }
  return arrivals_.data();
}

void CudaBackend::SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                             std::span<SampleResult> answers) {
  static_assert(sizeof(SampleJob) % 8 == 0 && sizeof(SampleOutput) % 8 == 0);
  PS_CHECK(queries.size() == answers.size() && queries.size() <= SampleQuery::kMaxRows);
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
  const int blocks = BlocksOf(width);
  const dim3 grid(SlicesOf(blocks), static_cast<unsigned>(rows));
  auto* keys = reinterpret_cast<unsigned long long*>(
      exchange_.Grow(device_.get(), ExchangeBytes(rows, blocks)));
  auto* maxima = reinterpret_cast<float*>(keys + rows * grid.x);
  const SampleBatch batch{
      logits,
      static_cast<int>(width),
      blocks,
      reinterpret_cast<SampleJob*>(to),
      reinterpret_cast<Edit*>(to + rows * sizeof(SampleJob)),
      {keys, maxima, maxima + rows * static_cast<size_t>(blocks), SampleArrivals()},
      reinterpret_cast<SampleOutput*>(from),
      reinterpret_cast<SampleCandidate*>(from + results)};
  const size_t shared = RowMemory::Bytes(blocks);
  device_->LaunchDependent(SampleKernel, grid, kSampleThreads, shared, batch);
  if (std::ranges::any_of(queries, [](const auto& query) { return ReadsWeights(query.kind); })) {
    device_->LaunchDependent(WeighKernel, grid, kSampleThreads, shared, batch);
  }
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
