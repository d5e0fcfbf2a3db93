// Kernels that measure a device: bandwidth, and what it takes thread blocks to wait for each other
// (ceilings.cu).
#pragma once

#include "kernels/cuda/bulk_copy.cuh"

namespace polysketch::cuda {

constexpr int kCeilingThreads = 256;
constexpr int kAhead = 4;  // accesses of 16 bytes that a thread starts together

// Calls run(at) with the first of each thread's groups of pieces at, at + kCeilingThreads, ...: a
// multiple of kAhead * kCeilingThreads pieces are divided among the grid.
template <typename Run>
__device__ __forceinline__ void ForPieces(int64_t pieces, const Run& run) {
  constexpr int64_t kOfBlock = int64_t{kAhead} * kCeilingThreads;
  for (int64_t at = blockIdx.x * kOfBlock + threadIdx.x; at < pieces; at += gridDim.x * kOfBlock) {
    run(at);
  }
}

__device__ __forceinline__ uint32_t FoldPiece(uint4 piece) {
  return piece.x ^ piece.y ^ piece.z ^ piece.w;
}

// Word i becomes a multiple of i + 1.
__global__ void FillWords(uint32_t* words, int64_t count) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    words[i] = static_cast<uint32_t>(i + 1) * 2654435761u;
  }
}

__global__ void __launch_bounds__(kCeilingThreads)
    CopyPieces(const uint4* from, uint4* to, int64_t pieces) {
  ForPieces(pieces, [&](int64_t at) {
    uint4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = from[at + i * kCeilingThreads];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) to[at + i * kCeilingThreads] = ahead[i];
  });
}

// sums [blocks][kCeilingThreads]: the exclusive or of the words that each thread has read.
__global__ void __launch_bounds__(kCeilingThreads)
    ReadPieces(const uint4* from, int64_t pieces, uint32_t* sums) {
  uint32_t sum = 0;
  ForPieces(pieces, [&](int64_t at) {
    uint4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = from[at + i * kCeilingThreads];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum ^= FoldPiece(ahead[i]);
  });
  sums[blockIdx.x * kCeilingThreads + threadIdx.x] = sum;
}

// ReadPieces by a ring of bulk copies. The first warps of a thread block read, the one after them
// starts the copies. sums: [blocks][kCeilingThreads].
constexpr int kRingPiece = 16 << 10;
using ReadRing = CopyRing<8>;
constexpr int kRingThreads = kCeilingThreads + kWarpSize;

__global__ void __launch_bounds__(kRingThreads)
    ReadByRing(const uint8_t* from, int64_t bytes, uint32_t* sums) {
  const ReadRing ring(SharedMemory<uint8_t>(), kRingPiece);
  const int thread = threadIdx.x;
  if (thread == 0) ring.Init(1, kCeilingThreads / kWarpSize);
  __syncthreads();
  const int64_t step = int64_t{gridDim.x} * kRingPiece;
  uint32_t sum = 0, piece = 0;
  for (int64_t at = int64_t{blockIdx.x} * kRingPiece; at < bytes; at += step, ++piece) {
    if (thread >= kCeilingThreads) {
      if (thread > kCeilingThreads) return;
      ring.Begin(piece);
      ring.Announce(piece, kRingPiece);
      ring.Copy(piece, 0, from + at, kRingPiece);
      continue;
    }
    const auto* stage = reinterpret_cast<const uint4*>(ring.Await(piece));
#pragma unroll
    for (int i = 0; i < kRingPiece / 16 / kCeilingThreads; ++i) {
      sum ^= FoldPiece(stage[i * kCeilingThreads + thread]);
    }
    ring.Release(piece);
  }
  if (thread < kCeilingThreads) sums[blockIdx.x * kCeilingThreads + thread] = sum;
}

// --- latencies: all thread blocks must be able to run at the same time ---

// Words between flags of different thread blocks: a line of 128 bytes.
constexpr int kFlagStride = 32;

// AwaitCounter that gives up after about a second. Returns whether the value has come.
__device__ __forceinline__ bool AwaitForAWhile(const int32_t* counter, int32_t value) {
#if defined(__CUDACC__)
  for (int i = 0; i < 1 << 21; ++i) {
    if (LoadCounter(counter) >= value) return true;
  }
  return false;
#else
  return LoadCounter(counter) >= value;
#endif
}

// What a barrier promises: what another thread block has stored before it is visible after it. Each
// block stores the round in its word of `words` before, and reads the next block's after.
struct RoundCheck {
  int32_t* words;   // [blocks * kFlagStride]; null: no check
  int32_t* faults;  // rounds that were not visible, and waits without end
  __device__ __forceinline__ void Before(int32_t round) const {
    if (words != nullptr && threadIdx.x == 0) words[blockIdx.x * kFlagStride] = round;
  }
  __device__ __forceinline__ void After(int32_t round) const {
    if (words == nullptr || threadIdx.x != 0) return;
    if (words[(blockIdx.x + 1) % gridDim.x * kFlagStride] < round) CountArrival(faults);
  }
};

// `rounds` barriers of the grid by one counter, zero before.
__global__ void CounterBarriers(int32_t* counter, int rounds, RoundCheck check) {
  for (int round = 1; round <= rounds; ++round) {
    check.Before(round);
    __syncthreads();
    if (threadIdx.x == 0) {
      CountArrival(counter);
      if (!AwaitForAWhile(counter, round * static_cast<int>(gridDim.x))) {
        CountArrival(check.faults);
        rounds = 0;
      }
    }
    __syncthreads();
    check.After(round);
  }
}

// The same by a flag of each thread block, zero before; thread i waits for the flag of block i.
__global__ void FlagBarriers(int32_t* flags, int rounds, RoundCheck check) {
  for (int round = 1; round <= rounds; ++round) {
    check.Before(round);
    __syncthreads();
    if (threadIdx.x == 0) Publish(flags + blockIdx.x * kFlagStride, round);
    if (threadIdx.x < gridDim.x && !AwaitForAWhile(flags + threadIdx.x * kFlagStride, round)) {
      CountArrival(check.faults);
      rounds = 0;
    }
    __syncthreads();
    check.After(round);
  }
}

// A token goes `rounds` times around the thread blocks: each waits for the flag of the one before it
// and sets its own, zero before. One thread a block.
__global__ void FlagRounds(int32_t* flags, int rounds, int32_t* faults) {
  const unsigned before = (blockIdx.x + gridDim.x - 1) % gridDim.x;
  for (int round = 1; round <= rounds; ++round) {
    const int32_t value = blockIdx.x == 0 ? round - 1 : round;
    if (!AwaitForAWhile(flags + before * kFlagStride, value)) {
      CountArrival(faults);
      return;
    }
    Publish(flags + blockIdx.x * kFlagStride, round);
  }
}

}  // namespace polysketch::cuda
