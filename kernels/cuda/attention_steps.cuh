// Decoding of many sequences: one token each. Thread blocks as many as multiprocessors take the items
// (sequence, head tile) in turn. Four warps copy the parts of all items (attention_parts.cuh), one after the
// other, into a ring; a warp for each stage computes the parts that come there, and the last one of
// an item joins all in order, in shared memory. So the copies never wait for a sum, and no partial
// result is in device memory. The bits are those of AttendParts.
#pragma once

#include "kernels/cuda/attention_few.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/planted.h"

namespace polysketch::cuda {

constexpr int kStepFillers = 4;  // warps that copy
// Stages of the ring; the fewer fit 99 KB, with one head in an item.
constexpr int kStepStages = 8, kFewStepStages = 4;
constexpr int kMaxStepParts = 16;  // of an item
constexpr int kMaxStepHeads = 4;   // of an item; their results take memory from the ring
// STAGES, here and below: of the ring, and warps that compute. More warps would have no piece to
// compute, and would wait for one whose predecessor in its stage is another's (CopyRing::Await).
template <int STAGES>
constexpr int kStepThreads = (STAGES + kStepFillers) * kWarpSize;

// Piece i is copied after piece i - STAGES was released, which is after its item's counter was
// raised and, by the last warp of the item, after the item was joined. So the pieces that are not
// released are among STAGES ones in a row, and with them the items that are not joined.
template <int D, int STAGES>
struct StepMemory {
  using Ring = CopyRing<STAGES>;
  static constexpr int kResults = kMaxStepParts + STAGES, kItems = STAGES;
  // heads: of an item.
  static __host__ __device__ int64_t Bytes(int far_dim, int near_dim, int heads) {
    return Ring::SharedBytes(PartBuffer<D>::Bytes(near_dim)) +
           STAGES * QueryBytes(kFewRows, far_dim, near_dim) +
           kResults * heads * RowResult(D) * sizeof(float) + kItems * sizeof(int32_t);
  }
  __device__ StepMemory(uint8_t* shared, int far_dim, int near_dim, int heads)
      : ring(shared, static_cast<int>(PartBuffer<D>::Bytes(near_dim))),
        query_bytes(QueryBytes(kFewRows, far_dim, near_dim)),
        result_floats(heads * RowResult(D)) {
    queries = shared + Ring::SharedBytes(PartBuffer<D>::Bytes(near_dim));
    results = reinterpret_cast<float*>(queries + STAGES * query_bytes);
    arrivals = reinterpret_cast<int32_t*>(results + kResults * result_floats);
  }
  // Of row `row` of a piece.
  __device__ __forceinline__ float* Result(uint32_t piece, int row) const {
    return results + static_cast<int>(piece % kResults) * result_floats + row * RowResult(D);
  }

  const Ring ring;
  const int64_t query_bytes;
  const int result_floats;  // of a piece
  uint8_t* queries;         // [STAGES]
  float* results;           // [kResults][heads][RowResult]
  int32_t* arrivals;        // [kItems]
};

// Computes piece `piece`, part `part` of an item; joins the item if it is the last part to come.
// item: its number in this thread block. first: its first piece.
template <typename Format, int D, bool GATED, bool WINDOW, int STAGES>
__device__ __forceinline__ void AttendStep(const AttentionShape& shape, const AttendJob& job,
                                           const QueryTile& tile, const PartList<WINDOW>& parts,
                                           uint32_t item, uint32_t first, uint32_t piece,
                                           const StepMemory<D, STAGES>& memory) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const Queries queries(shape, job, tile, memory.queries + warp * memory.query_bytes, kFewRows,
                        tile.rows, lane, kWarpSize);
  __syncwarp();
  const PartBuffer<D> buffer(memory.ring.Await(piece), shape.near_dim);
  RowSums<D, 1> sums;
  ComputePart<Format, D, 1, GATED>(shape, job, tile, parts, static_cast<int>(piece - first), 0,
                                   queries.far, queries.far_size, queries.near, queries.near_size,
                                   buffer, &sums);
  StoreResults(tile, sums, [&](int r) { return memory.Result(piece, r); });
  __syncwarp();
  int32_t* arrivals = memory.arrivals + item % memory.kItems;
  int32_t before = 0;
  if (lane == 0) before = CountArrivalInBlock(arrivals);
  bool last = __shfl_sync(kFullWarp, before, 0) + 1 == parts.size();
  if (PS_PLANTED(EARLY_STEP)) last = static_cast<int>(piece - first) + 1 == parts.size();
  __syncwarp();
  if (last) {
    RowJoin<D, GATED, WINDOW> join(shape, job, tile, parts.far);
    for (int r = 0; r < tile.rows; ++r) {
      join.Clear();
      join.Add(r, 0, parts.size(), [&](int part) { return memory.Result(first + part, r); });
      join.Store(r);
    }
    __syncwarp();
    if (lane == 0) *arrivals = 0;
  }
  memory.ring.Release(piece);
}

// Jobs of one token with at most kMaxStepParts parts. items: jobs times tiles; of_job: tiles of a job.
template <typename Format, int D, bool GATED, bool WINDOW, int STAGES>
__global__ void __launch_bounds__(kStepThreads<STAGES>, 1)
    AttendSteps(AttentionShape shape, const AttendJob* jobs, HeadTiles tiles, int items,
                Divisor of_job) {
  AfterEarlierKernels();
  const StepMemory<D, STAGES> memory(SharedMemory<uint8_t>(), shape.far_dim, shape.near_dim,
                                     tiles.heads);
  const int thread = threadIdx.x, warp = thread / kWarpSize;
  if (thread == 0) memory.ring.Init(kStepFillers * kWarpSize, 1);
  if (thread < memory.kItems) memory.arrivals[thread] = 0;
  // Rows of a tile without a query have any finite values.
  for (int i = thread; i < STAGES * memory.query_bytes / 16; i += kStepThreads<STAGES>) {
    reinterpret_cast<uint4*>(memory.queries)[i] = uint4{};
  }
  __syncthreads();
  uint32_t first = 0, number = 0;
  for (int item = blockIdx.x; item < items; item += static_cast<int>(gridDim.x), ++number) {
    const int of_jobs = of_job.Quotient(item);
    const AttendJob& job = jobs[of_jobs];
    const QueryTile tile(shape, job, tiles, item - of_jobs * of_job.value());
    const PartList<WINDOW> parts(shape, job, job.block_offset);
    const auto count = static_cast<uint32_t>(parts.size());
    if (warp >= STAGES) {
      for (uint32_t i = 0; i < count; ++i) {
        const PartBuffer<D> buffer(memory.ring.Begin(first + i), shape.near_dim);
        LoadPart<Format, D, GATED>(shape, job, tile.kv, parts, static_cast<int>(i), buffer,
                                   thread - STAGES * kWarpSize, kStepFillers * kWarpSize);
        memory.ring.End(first + i);
      }
    } else {
      // Each stage is of one warp; the fault: of another one in each item.
      const uint32_t turn = PS_PLANTED(STEP_TURN) ? number : 0;
      uint32_t i = (warp + STAGES - (first + turn) % STAGES) % STAGES;
      for (; i < count; i += STAGES) {
        AttendStep<Format, D, GATED, WINDOW, STAGES>(shape, job, tile, parts, number, first,
                                                     first + i, memory);
      }
    }
    first += count;
  }
}

}  // namespace polysketch::cuda
