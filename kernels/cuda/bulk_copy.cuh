// Barriers in shared memory (mbarrier) that say when copies from global memory have arrived; bulk
// copies, from sm_90 on; CopyRing: a ring of stages that a thread or a warp fills and warps read.
// Compiled by g++ (tests/simt), the instructions are emulated.
//
// A barrier's phase ends when `count` threads have arrived and all announced bytes have come. Its
// phases have the parities 0, 1, 0, ...
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/planted.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {

// For one thread, before any use. The thread then calls FenceBarriers, and its thread block
// synchronises.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, uint32_t count) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
#else
  simt::InitBarrier(barrier, count);
#endif
}

// Makes barriers that this thread has initialised visible to bulk copies.
__device__ __forceinline__ void FenceBarriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
  simt::FenceBarriers();
#endif
}

__device__ __forceinline__ void ArriveAt(uint64_t* barrier) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(barrier);
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(address)
               : "memory");
#else
  simt::ArriveAt(barrier, 0);
#endif
}

// ArriveAt that announces `bytes` bytes of bulk copies to this phase.
__device__ __forceinline__ void ArriveWithBytes([[maybe_unused]] uint64_t* barrier,
                                                [[maybe_unused]] uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto address = SharedAddress(barrier);
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          address),
      "r"(bytes)
      : "memory");
#elif !defined(__CUDACC__)
  simt::ArriveAt(barrier, bytes);
#endif
}

// ArriveAt once all copies of this thread (CopyAsync16) that it has started have come.
__device__ __forceinline__ void ArriveAfterCopies(uint64_t* barrier) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(barrier);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
#else
  simt::ArriveAfterCopies(barrier);
#endif
}

// Waits until the last phase of this parity has ended; before the first phase ends, parity 1 counts
// as ended.
__device__ __forceinline__ void AwaitPhase(uint64_t* barrier, uint32_t parity) {
#if defined(__CUDACC__)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define POLYSKETCH_TEST_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define POLYSKETCH_TEST_WAIT "mbarrier.test_wait.parity.shared::cta.b64"
#endif
  const auto address = SharedAddress(barrier);
  uint32_t ended;
  do {
    asm volatile("{ .reg .pred ended;\n" POLYSKETCH_TEST_WAIT
                 " ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended; }"
                 : "=r"(ended)
                 : "r"(address), "r"(parity)
                 : "memory");
  } while (ended == 0);
#else
  simt::AwaitPhase(barrier, parity);
#endif
}

// Starts the copy of `bytes` bytes, a multiple of 16 between addresses aligned to 16. Their arrival
// counts at `barrier`. A copy sees what earlier kernels have stored, not what this one stores.
__device__ __forceinline__ void CopyBulk([[maybe_unused]] void* shared,
                                         [[maybe_unused]] const void* global,
                                         [[maybe_unused]] uint32_t bytes,
                                         [[maybe_unused]] uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto to = SharedAddress(shared);
  const auto done = SharedAddress(barrier);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(global), "r"(bytes), "r"(done)
      : "memory");
#elif !defined(__CUDACC__)
  simt::CopyBulk(shared, global, bytes, barrier);
#endif
}

// Makes what this thread has seen in global memory since the launch visible to the bulk copies that it
// starts next.
__device__ __forceinline__ void FenceForCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// A ring of kStages stages. Stage i % kStages gets piece i, from one thread by bulk copies or from a
// warp by CopyAsync16; the warps that read a piece wait for it, read it, and release it. Bulk copies
// into what a thread has written need a fence, which the ring does not have.
template <int kStages>
class CopyRing {
 public:
  static __host__ __device__ constexpr int64_t SharedBytes(int64_t stage_bytes) {
    return kStages * (stage_bytes + 2 * static_cast<int64_t>(sizeof(uint64_t)));
  }

  // shared: SharedBytes(stage_bytes) bytes; stage_bytes is a multiple of 16.
  __device__ CopyRing(uint8_t* shared, int stage_bytes)
      : stages_(shared),
        stage_bytes_(stage_bytes),
        full_(reinterpret_cast<uint64_t*>(shared + kStages * stage_bytes)),
        empty_(full_ + kStages) {}

  // For one thread; then the thread block synchronises. fillers: 1 for bulk copies, else the lanes of
  // a warp. readers: warps that read each piece.
  __device__ void Init(uint32_t fillers, uint32_t readers) const {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(full_ + i, fillers);
      InitBarrier(empty_ + i, readers);
    }
    if (!PS_PLANTED(RING_FENCE)) FenceBarriers();
  }

  __device__ __forceinline__ uint8_t* stage(uint32_t i) const {
    return stages_ + i % kStages * stage_bytes_;
  }

  // A filler: waits until the stage of piece `i` is free, and returns it.
  __device__ __forceinline__ uint8_t* Begin(uint32_t i) const {
    if (!PS_PLANTED(RING_REUSE)) AwaitPhase(empty_ + i % kStages, Round(i) ^ 1);
    return stage(i);
  }
  // A lane of the filling warp: has started its copies of piece `i`.
  __device__ __forceinline__ void End(uint32_t i) const { ArriveAfterCopies(full_ + i % kStages); }
  // The filling thread: announces `bytes` bytes of bulk copies, which it starts next.
  __device__ __forceinline__ void Announce(uint32_t i, uint32_t bytes) const {
    ArriveWithBytes(full_ + i % kStages, bytes);
  }
  __device__ __forceinline__ void Copy(uint32_t i, uint32_t offset, const void* global,
                                       uint32_t bytes) const {
    CopyBulk(stage(i) + offset, global, bytes, full_ + i % kStages);
  }
  // The filling warp: starts the copy of `bytes` bytes, which are all of piece `i`.
  __device__ __forceinline__ void CopyPiece(uint32_t i, const uint8_t* global,
                                            uint32_t bytes) const {
    const uint32_t lane = threadIdx.x % kWarpSize;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    for (uint32_t at = 16 * lane; at < bytes; at += 16 * kWarpSize) {
      CopyAsync16(stage(i) + at, global + at, true);
    }
    End(i);
#else
    if (lane == 0) {
      FenceForCopies();
      Announce(i, bytes);
      Copy(i, 0, global, bytes);
    } else {
      ArriveAt(full_ + i % kStages);
    }
#endif
  }

  // A reader: waits until piece `i` has come. It must know that the one before in this stage has
  // come, as when it has read it: parity does not tell that piece's predecessor from piece `i`.
  __device__ __forceinline__ uint8_t* Await(uint32_t i) const {
    const uint32_t round = PS_PLANTED(RING_PARITY) ? Round(i) ^ 1 : Round(i);
    if (!PS_PLANTED(RING_WAIT)) AwaitPhase(full_ + i % kStages, round);
    return stage(i);
  }
  // A reader: all its lanes have read piece `i`.
  __device__ __forceinline__ void Release(uint32_t i) const {
    if (!PS_PLANTED(RING_LANES)) __syncwarp();
    if (threadIdx.x % kWarpSize == 0) ArriveAt(empty_ + i % kStages);
  }

 private:
  static __device__ __forceinline__ uint32_t Round(uint32_t i) { return i / kStages & 1; }

  uint8_t* const stages_;
  const int stage_bytes_;
  uint64_t* const full_;
  uint64_t* const empty_;
};

}  // namespace polysketch::cuda
