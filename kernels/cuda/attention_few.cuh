// Few rows: a warp computes one part for the rows of a tile, and the results of all parts of a row are
// joined in order, as AttendTiles does it, whichever warp does that. Of one token the rows of a tile are
// the query heads of a kv head, so that state and keys are read once for all of them.
#pragma once

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

constexpr int kFewRows = 16;    // of a tile
constexpr int kJoinParts = 32;  // whose results are joined at a time
constexpr int kJoinStages = 2;  // of the ring of results
// The most work of a tile's rows after its first that a warp of AttendParts joins: rows times (parts + 16),
// of which 14 cycles each are one. JoinResults takes a launch and joins all rows at once.
constexpr int64_t kOwnJoinWork = 256;

// Floats of the result of a row and part: values [D], the sum of weights, the top, and two more: a multiple
// of 16 bytes.
__host__ __device__ constexpr int RowResult(int d) { return d + 4; }
template <int D>
__host__ __device__ constexpr int64_t JoinShared() {
  return kJoinStages * kJoinParts * RowResult(D) * static_cast<int64_t>(sizeof(float));
}

template <int D>
int64_t PartsShared(int far_dim, int near_dim) {
  return QueryBytes(kFewRows, far_dim, near_dim) + PartBuffer<D>::Bytes(near_dim);
}

// The results of all parts of a tile's first row, one after the other; those of the next rows follow.
template <int D>
__device__ __forceinline__ float* ResultsOf(float* results, const AttentionShape& shape,
                                            const AttendJob& job, const QueryTile& tile,
                                            int parts) {
  const int64_t of_job = job.partial * shape.heads;
  return results + (of_job + int64_t{tile.head} * job.count * parts) * RowResult(D);
}

// Stores a warp's sums of a part as the results result_of(row) of a tile's rows.
template <int D, typename ResultOf>
__device__ __forceinline__ void StoreResults(const QueryTile& tile, const RowSums<D, 1>& sums,
                                             const ResultOf& result_of) {
  const int t = threadIdx.x % 4;
  ForRows<1>([&](int, int half, int r) {
    if (r >= tile.rows) return;
    float* of_row = result_of(r);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      of_row[8 * n + 2 * t] = sums.values[0][n][2 * half];
      of_row[8 * n + 2 * t + 1] = sums.values[0][n][2 * half + 1];
    }
    if (t == 0) {
      of_row[D] = sums.weights[0][2 * half];
      of_row[D + 1] = sums.top[0][half];
    }
  });
}

// Joins the results of a row's parts. One warp.
template <int D, bool GATED, bool WINDOW>
class RowJoin {
 public:
  __device__ __forceinline__ RowJoin(const AttentionShape& shape, const AttendJob& job,
                                     const QueryTile& tile, int far)
      : shape_(shape), job_(job), tile_(tile), far_(far) {}

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) values_[i] = 0;
    weights_ = 0;
    top_ = -INFINITY;
  }
  // Adds parts part to part + count - 1 of row `row`, at most kJoinParts, whose results are
  // result_of(0), result_of(1), ... in shared memory. Overwrites what follows their weights.
  template <typename ResultOf>
  __device__ __forceinline__ void Add(int row, int part, int count, const ResultOf& result_of) {
    int added = 0;
    if (part < far_) {
      added = min(count, far_ - part);
      AddRun(0, added, result_of);
      if (part + added == far_) ScaleFar(row);
    }
    AddRun(added, count, result_of);
  }
  __device__ __forceinline__ void Store(int row) const {
    const float inverse = 1.0f / (shape_.stabilizer + weights_);
    const int64_t out = tile_.Row(shape_, job_, row) * D;
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      StoreOutput(shape_, out + lane + i * kWarpSize, values_[i] * inverse);
    }
  }

 private:
  static constexpr int kColumns = D / kWarpSize;  // of a lane

  // Lane i computes how part `first` + i is joined, and leaves that for all lanes after its weight.
  template <typename ResultOf>
  __device__ __forceinline__ void AddRun(int first, int end, const ResultOf& result_of) {
    if (first >= end) return;
    const int lane = threadIdx.x % kWarpSize, own = first + lane;
    float* tail = result_of(min(own, end - 1)) + D;  // the weight, the top
    const float part_top = own < end ? tail[1] : -INFINITY;
    const bool softmax = shape_.near_power == 0;
    float before = top_;
    if (softmax) {
      float up_to = part_top;  // the largest top of parts `first` to `own`
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        up_to = fmaxf(__shfl_sync(kFullWarp, up_to, max(lane - distance, 0)), up_to);
      }
      const float lower = __shfl_sync(kFullWarp, up_to, max(lane - 1, 0));
      if (lane > 0) before = fmaxf(top_, lower);
    }
    const Joint joint(softmax, before, part_top);
    if (own < end) {
      tail[1] = joint.of_total;
      tail[2] = joint.of_part;
    }
    if (!PS_PLANTED(EARLY_FACTORS)) __syncwarp();
#pragma unroll 8
    for (int i = first; i < end; ++i) {
      const float* of_row = result_of(i);
      const float4 of = *reinterpret_cast<const float4*>(of_row + D);
      Joint factors;
      factors.of_total = of.y;
      factors.of_part = of.z;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        values_[c] = factors.Add(values_[c], of_row[lane + c * kWarpSize]);
      }
      weights_ = factors.Add(weights_, of.x);
    }
    top_ = __shfl_sync(kFullWarp, joint.top, end - 1 - first);
  }

  // After the last far part: as DecayFarPart and ScaleFarPart.
  __device__ __forceinline__ void ScaleFar(int row) {
    const int token = tile_.Token(row);
    if (GATED) Scale(expf(*RowDecaySums(shape_, job_, tile_.kv, token)));
    if (WINDOW) {
      const FarScale scale(shape_, PositionOf(shape_, job_, token), weights_);
      Scale(scale.factor);
      top_ = scale.top;
    }
  }
  __device__ __forceinline__ void Scale(float factor) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) values_[i] *= factor;
    weights_ *= factor;
  }

  const AttentionShape& shape_;
  const AttendJob& job_;
  const QueryTile& tile_;
  const int far_;
  float values_[kColumns], weights_, top_;
};

// Joins rows first to first + count - 1 of a tile, whose results come through a ring in shared memory.
// results: of the tile. One warp, a thread block of its own.
template <int D, bool GATED, bool WINDOW>
__device__ __forceinline__ void JoinRows(const AttentionShape& shape, const AttendJob& job,
                                         const QueryTile& tile, const PartList<WINDOW>& list,
                                         int first, int count, const float* results,
                                         float* stages) {
  constexpr int kStage = kJoinParts * RowResult(D);
  const int parts = list.size();
  struct Place {
    int row, part = 0;
    __device__ __forceinline__ void Next(int of_row) {
      part += kJoinParts;
      if (part < of_row) return;
      part = 0;
      ++row;
    }
  };
  Place ahead{first}, now{first};
  const auto load = [&](int stage) {
    if (ahead.row < first + count) {
      const float* from = results + (int64_t{ahead.row} * parts + ahead.part) * RowResult(D);
      const int floats = min(kJoinParts, parts - ahead.part) * RowResult(D);
      for (int i = 4 * threadIdx.x; i < floats; i += 4 * kWarpSize) {
        CopyAsync16(stages + stage * kStage + i, from + i, true);
      }
      ahead.Next(parts);
    }
    CommitCopies();
  };
  for (int stage = 0; stage < kJoinStages - 1; ++stage) load(stage);
  RowJoin<D, GATED, WINDOW> join(shape, job, tile, list.far);
  for (int i = 0; now.row < first + count; ++i, now.Next(parts)) {
    load((i + kJoinStages - 1) % kJoinStages);
    if (!PS_PLANTED(EARLY_RESULTS)) WaitCopies<kJoinStages - 1>();
    __syncwarp();
    float* stage = stages + i % kJoinStages * kStage;
    if (now.part == 0) join.Clear();
    join.Add(now.row, now.part, min(kJoinParts, parts - now.part),
             [&](int of_part) { return stage + of_part * RowResult(D); });
    if (now.part + kJoinParts >= parts) join.Store(now.row);
    __syncwarp();  // the stage may be overwritten
  }
  WaitCopies<0>();
}

// Few rows. blockIdx: job, tile (QueryTile), part; one warp. Of a tile the warp that stores its part last
// joins all parts, unless `arrivals` is null: JoinResults follows. arrivals: of a job's tiles, `heads` apart,
// zero.
template <typename Format, int D, bool GATED, bool WINDOW>
__global__ void __launch_bounds__(kWarpSize)
    AttendParts(AttentionShape shape, const AttendJob* jobs, HeadTiles tiles, float* results,
                int32_t* arrivals) {
  AfterEarlierKernels();
  const AttendJob& job = jobs[blockIdx.x];
  const int lane = threadIdx.x;
  const PartList<WINDOW> parts(shape, job, job.block_offset + job.count - 1);
  const int part = blockIdx.z, index = blockIdx.y;
  if (part >= parts.size() || index >= tiles.Of(shape, job.count)) return;
  const QueryTile tile(shape, job, tiles, index);
  auto* shared = SharedMemory<uint8_t>();
  uint8_t* memory = shared + QueryBytes(kFewRows, shape.far_dim, shape.near_dim);
  const PartBuffer<D> buffer(memory, shape.near_dim);
  LoadPart<Format, D, GATED>(shape, job, tile.kv, parts, part, buffer, lane, kWarpSize);
  CommitCopies();
  const Queries queries(shape, job, tile, shared, kFewRows, kFewRows, lane, kWarpSize);
  WaitCopies<0>();
  __syncthreads();
  RowSums<D, 1> sums;
  ComputePart<Format, D, 1, GATED>(shape, job, tile, parts, part, 0, queries.far, queries.far_size,
                                   queries.near, queries.near_size, buffer, &sums);

  float* of_tile = ResultsOf<D>(results, shape, job, tile, parts.size());
  StoreResults(tile, sums,
               [&](int r) { return of_tile + (int64_t{r} * parts.size() + part) * RowResult(D); });
  if (arrivals == nullptr) return;

  __syncwarp();
  int32_t before = 0;
  if (lane == 0) before = CountArrival(arrivals + blockIdx.x * shape.heads + index);
  bool last = __shfl_sync(kFullWarp, before, 0) + 1 == parts.size();
  if (PS_PLANTED(EARLY_JOIN)) last = part + 1 == parts.size();
  __syncwarp();
  if (!last) return;
  static_assert(JoinShared<D>() <= PartBuffer<D>::Bytes(0));
  JoinRows<D, GATED>(shape, job, tile, parts, 0, tile.rows, of_tile,
                     reinterpret_cast<float*>(memory));
}

// Joins the results of AttendParts, a thread block of one warp for each row. blockIdx: job, head, token.
template <int D, bool GATED, bool WINDOW>
__global__ void __launch_bounds__(kWarpSize)
    JoinResults(AttentionShape shape, const AttendJob* jobs, float* results) {
  AfterEarlierKernels();
  const AttendJob& job = jobs[blockIdx.x];
  const int row = blockIdx.z;
  if (row >= job.count) return;
  const QueryTile tile(shape, job, blockIdx.y);
  const PartList<WINDOW> parts(shape, job, job.block_offset + job.count - 1);
  JoinRows<D, GATED>(shape, job, tile, parts, row, 1,
                     ResultsOf<D>(results, shape, job, tile, parts.size()), SharedMemory<float>());
}

}  // namespace polysketch::cuda
