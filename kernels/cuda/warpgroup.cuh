// Warpgroup products (wgmma) of Hopper: four consecutive warps multiply A [64 x 16] by B [16 x 64]
// of shared memory. Compiled for other devices and under emulation, each warp multiplies its 16 rows
// by the instructions of ptx.cuh; the sums are the same bits (AnySplitAnyNeighbourAnySchedule of
// tests/cuda/tensor_attention_test.cc, on a device).
//
// Operands in shared memory are rows of 64 16-bit elements (128 bytes) with the 128-byte swizzle:
// the 16-byte chunk c of row r is stored as chunk c ^ (r % 8). The first row is aligned to 1,024
// bytes. PTX manual, "Shared Memory Matrix Layout".
#pragma once

#include "kernels/cuda/ptx.cuh"

#if defined(__CUDACC__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define POLYSKETCH_WGMMA 1
#else
#define POLYSKETCH_WGMMA 0
#endif

namespace polysketch::cuda {

constexpr int kWarpgroup = 4 * kWarpSize;
constexpr int kSwizzledRow = 64;  // elements

// The offset, in elements, of chunk `chunk` (8 elements) of row `row`.
__host__ __device__ constexpr int SwizzledChunk(int row, int chunk) {
  return row * kSwizzledRow + (chunk ^ (row % 8)) * 8;
}

// Makes this thread's writes to shared memory visible to wgmma. The caller has a barrier after it.
__device__ __forceinline__ void FenceForProducts() {
#if POLYSKETCH_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Before the first product after other instructions have written its registers.
__device__ __forceinline__ void BeginProducts() {
#if POLYSKETCH_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Ends a group of products, which run while the warps go on. Until WaitProducts the caller writes no
// register of an operand and reads no sum.
__device__ __forceinline__ void CommitProducts() {
#if POLYSKETCH_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits for all products of the warpgroup.
__device__ __forceinline__ void WaitProducts() {
#if POLYSKETCH_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

#if POLYSKETCH_WGMMA
// The lower word of a descriptor counts 16 bytes: the address, and in the upper half the bytes from the
// first 64 columns to those after them. Groups of eight rows are 1,024 bytes apart.
__device__ __forceinline__ uint64_t SwizzledDescriptor(const void* rows, uint32_t lower) {
  return ((SharedAddress(rows) >> 4) + lower) | (uint64_t{(1024 >> 4) | (1u << 30)} << 32);
}

#define POLYSKETCH_SUMS                                                                         \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31}"
#define POLYSKETCH_WIDE_SUMS                                                                    \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35}"
#define POLYSKETCH_SUM(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define POLYSKETCH_SUM_OPERANDS                                                                  \
  POLYSKETCH_SUM(0), POLYSKETCH_SUM(1), POLYSKETCH_SUM(2), POLYSKETCH_SUM(3), POLYSKETCH_SUM(4), \
      POLYSKETCH_SUM(5), POLYSKETCH_SUM(6), POLYSKETCH_SUM(7)
#endif

// c [64 x 72] = (add ? c : 0) + a [64 x 16] [b, last]. A and C fragments of a warp, which has 16 rows:
// ptx.cuh. b: rows 16 k to 16 k + 15 of [.][64], swizzled; last: [16][8], swizzled as the first chunks
// of rows of 64; after b in memory.
__device__ __forceinline__ void GroupProduct(float (&c)[9][4], const uint32_t (&a)[4],
                                             const Bf16* b, const Bf16* last, int k, bool add) {
#if POLYSKETCH_WGMMA
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %41, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 " POLYSKETCH_WIDE_SUMS
      ", {%36,%37,%38,%39}, %40, add, 1, 1, 1;\n}\n"
      : POLYSKETCH_SUM_OPERANDS, POLYSKETCH_SUM(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
        "l"(SwizzledDescriptor(
            b, (static_cast<uint32_t>(last - b) / 8 << 16) + k * (128u - (128u << 16)))),
        "r"(add ? 1 : 0));
#else
  b += 16 * k * kSwizzledRow;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int n = 0; n < 10; n += 2) {
    if (!add) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[n][i] = 0;
        if (n < 8) c[n + 1][i] = 0;
      }
    }
    uint32_t rows[4];
    LoadMatrix4T(rows, n < 8 ? b + SwizzledChunk(lane % 16, n + lane / 16)
                             : last + SwizzledChunk(lane % 16, 0));
    MmaBf16(c[n], a, rows[0], rows[1]);
    if (n < 8) MmaBf16(c[n + 1], a, rows[2], rows[3]);
  }
#endif
}

// c [64 x 72] = (add ? c : 0) + a [64 x 16] b^T. b: columns 16 k to 16 k + 15 of [72][64], swizzled.
__device__ __forceinline__ void GroupProductOfRows(float (&c)[9][4], const uint32_t (&a)[4],
                                                   const Bf16* b, int k, bool add) {
#if POLYSKETCH_WGMMA
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %41, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 " POLYSKETCH_WIDE_SUMS
      ", {%36,%37,%38,%39}, %40, add, 1, 1, 0;\n}\n"
      : POLYSKETCH_SUM_OPERANDS, POLYSKETCH_SUM(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(SwizzledDescriptor(b, (1u << 16) + 2 * k)),
        "r"(add ? 1 : 0));
#else
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int n = 0; n < 9; n += 2) {
#pragma unroll
    for (int i = 0; i < 4 && !add; ++i) {
      c[n][i] = 0;
      if (n < 8) c[n + 1][i] = 0;
    }
    uint32_t rows[4];
    const int row = 8 * n + (n < 8 ? lane / 16 * 8 : 0) + lane % 8;
    LoadMatrix4(rows, b + SwizzledChunk(row, 2 * k + lane / 8 % 2));
    MmaBf16(c[n], a, rows[0], rows[1]);
    if (n < 8) MmaBf16(c[n + 1], a, rows[2], rows[3]);
  }
#endif
}

// c [64 x 64] = a [64 x 16 K] b^T. a: the warpgroup's 64 rows; b: [64][16 K]. Both swizzled.
template <int K>
__device__ __forceinline__ void GroupScores(float (&c)[8][4], const Bf16* a, const Bf16* b) {
#if POLYSKETCH_WGMMA
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 16 elements are 32 bytes
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " POLYSKETCH_SUMS
        ", %32, %33, add, 1, 1, 0, 0;\n}\n"
        : POLYSKETCH_SUM_OPERANDS
        : "l"(SwizzledDescriptor(a, (1u << 16) + 2 * k)),
          "l"(SwizzledDescriptor(b, (1u << 16) + 2 * k)), "r"(k));
  }
#else
  const int lane = threadIdx.x % kWarpSize;
  const int first = static_cast<int>(threadIdx.x) % kWarpgroup / kWarpSize * 16;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = 0;
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    uint32_t q[4];
    LoadMatrix4(q, a + SwizzledChunk(first + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t keys[4];
      LoadMatrix4(keys, b + SwizzledChunk(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      MmaBf16(c[n], q, keys[0], keys[1]);
      MmaBf16(c[n + 1], q, keys[2], keys[3]);
    }
  }
#endif
}

}  // namespace polysketch::cuda
