// The PTX instructions that the kernels use, each as one function: tensor cores, asynchronous
// copies, packed 16-bit arithmetic. warpgroup.cuh has those of warpgroups, bulk_copy.cuh bulk copies
// and their barriers; all other code in kernels/cuda is CUDA C++ without assembly.
// Compiled by g++ (tests/simt), the functions are emulated.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace polysketch::cuda {

// The bits of a 16-bit float. A register holds a pair, the lower index in the lower half.
using Bf16 = uint16_t;

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarpSize = 32;

// The block's dynamic shared memory, aligned to 1,024 bytes.
template <typename T>
__device__ __forceinline__ T* SharedMemory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(1024) unsigned char polysketch_shared[];
  return reinterpret_cast<T*>(polysketch_shared);
#else
  return static_cast<T*>(simt::DynamicShared());
#endif
}

#if defined(__CUDACC__)
// The address of shared memory as PTX instructions take it.
__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

__device__ __forceinline__ uint32_t FloatBits(float value) {
#if defined(__CUDACC__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

__device__ __forceinline__ float BitsFloat(uint32_t bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

__device__ __forceinline__ float WidenBf16(Bf16 bits) {
  return BitsFloat(static_cast<uint32_t>(bits) << 16);
}

// Nearest even; NaN stays NaN.
__device__ __forceinline__ Bf16 RoundBf16(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

__device__ __forceinline__ float WidenF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) return BitsFloat(sign | 0x7f800000u | ((magnitude & 0x3ff) << 13));
  if (magnitude < 0x400) {
    return BitsFloat(sign | FloatBits(static_cast<float>(magnitude) * 0x1p-24f));
  }
  return BitsFloat(sign | ((magnitude << 13) + (112u << 23)));
}

// As base/half.h: nearest even, overflow to infinity.
__device__ __forceinline__ uint16_t RoundF16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000u) {
    const float shifted = BitsFloat(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (FloatBits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// Rounds two floats to a pair, nearest even.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
#if defined(__CUDACC__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return RoundBf16(low) | static_cast<uint32_t>(RoundBf16(high)) << 16;
#endif
}

__device__ __forceinline__ uint32_t PackF16(float low, float high) {
#if defined(__CUDACC__)
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return RoundF16(low) | static_cast<uint32_t>(RoundF16(high)) << 16;
#endif
}

// Products of pairs, each rounded to bf16. sm_80 has only a fused bf16 multiplication: adding -0
// changes no product, not even its sign.
__device__ __forceinline__ uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
  return out;
#else
  return PackBf16(WidenBf16(a & 0xffff) * WidenBf16(b & 0xffff),
                  WidenBf16(a >> 16) * WidenBf16(b >> 16));
#endif
}

// a b + c of pairs, each rounded once to bf16.
__device__ __forceinline__ uint32_t FmaBf16(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
#else
  return PackBf16(std::fma(WidenBf16(a & 0xffff), WidenBf16(b & 0xffff), WidenBf16(c & 0xffff)),
                  std::fma(WidenBf16(a >> 16), WidenBf16(b >> 16), WidenBf16(c >> 16)));
#endif
}

// sum + the products of four signed bytes of a and b.
__device__ __forceinline__ int32_t Dot4(uint32_t a, uint32_t b, int32_t sum) {
#if defined(__CUDACC__)
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), sum);
#else
  for (int i = 0; i < 32; i += 8) {
    sum += static_cast<int8_t>(a >> i & 0xff) * static_cast<int8_t>(b >> i & 0xff);
  }
  return sum;
#endif
}

// Byte i of a word, signed.
__device__ __forceinline__ int32_t SignedByte(uint32_t word, int i) {
#if defined(__CUDACC__)
  int32_t byte;  // and its sign three times
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(byte) : "r"(word), "r"(0x8880 + 0x1111 * i));
  return byte;
#else
  return static_cast<int8_t>(word >> 8 * i);
#endif
}

// Copies one half of a pair to both halves.
__device__ __forceinline__ uint32_t BroadcastLow(uint32_t pair) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
      : "=r"(out)
      : "r"(pair));
  return out;
#else
  return (pair & 0xffffu) | (pair << 16);
#endif
}
__device__ __forceinline__ uint32_t BroadcastHigh(uint32_t pair) {
#if defined(__CUDACC__)
  uint32_t out;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
      : "=r"(out)
      : "r"(pair));
  return out;
#else
  return (pair >> 16) | (pair & 0xffff0000u);
#endif
}

// c [16 x 8] += a [16 x 16] b [16 x 8], float32 sums. Fragments of mma.m16n8k16 (PTX manual): lane
// 4 g + t holds of a rows g and g + 8 of columns 2t, 2t + 1, then of columns 2t + 8, 2t + 9; of b
// rows 2t, 2t + 1 of column g, then rows 2t + 8, 2t + 9; of c columns 2t, 2t + 1 of row g, then of
// row g + 8.
__device__ __forceinline__ void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const uint32_t b[2] = {b0, b1};
  simt::MmaBf16(c, a, b);
#endif
}

__device__ __forceinline__ void MmaF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const uint32_t b[2] = {b0, b1};
  simt::MmaF16(c, a, b);
#endif
}

// c [16 x 8] += a [16 x 32] b [32 x 8] of signed bytes, with exact sums. Fragments of mma.m16n8k32:
// lane 4 g + t holds of a rows g and g + 8 of columns 4t to 4t + 3, then of columns 4t + 16 on; of b
// rows 4t to 4t + 3 of column g, then rows 4t + 16 on; of c the elements of m16n8k16.
__device__ __forceinline__ void MmaBytes(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const uint32_t b[2] = {b0, b1};
  simt::MmaBytes(c, a, b);
#endif
}

// For kernels that are instantiated for both 16-bit formats.
template <bool kBf16>
__device__ __forceinline__ uint32_t PackHalf(float low, float high) {
  return kBf16 ? PackBf16(low, high) : PackF16(low, high);
}
template <bool kBf16>
__device__ __forceinline__ void MmaHalf(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  if constexpr (kBf16) {
    MmaBf16(c, a, b0, b1);
  } else {
    MmaF16(c, a, b0, b1);
  }
}

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane i passes the address of row i
// % 8 of matrix i / 8 (16 bytes, aligned). Lane 4 g + t receives row g, columns 2t, 2t + 1 of each
// matrix; LoadMatrix4T of each transposed matrix.
__device__ __forceinline__ void LoadMatrix4(uint32_t (&out)[4], const void* row) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#else
  simt::LoadMatrix4(out, row, false);
#endif
}

__device__ __forceinline__ void LoadMatrix4T(uint32_t (&out)[4], const void* row) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#else
  simt::LoadMatrix4(out, row, true);
#endif
}

// Transposes an 8x8 matrix of 16-bit elements, of which lane 4 g + t has row g, columns 2t, 2t + 1.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t pair) {
#if defined(__CUDACC__)
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
#else
  const int lane = threadIdx.x % kWarpSize, from = lane % 4 * 8 + lane / 8,
            shift = lane / 4 % 2 * 16;
  const uint32_t low = __shfl_sync(kFullWarp, pair, from);
  const uint32_t high = __shfl_sync(kFullWarp, pair, from + 4);
  return (low >> shift & 0xffff) | (high >> shift & 0xffff) << 16;
#endif
}

// Lets the next kernel of the stream begin, if it is launched early (launch.h), once every thread
// block of this one has come here or ended.
__device__ __forceinline__ void LetNextKernelBegin() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In a kernel launched early: waits until the kernel before it has ended.
__device__ __forceinline__ void AwaitLastKernel() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start (Device::LaunchDependent) and waits for the end of the earlier ones.
// What a kernel does before it overlaps with them: it may only read weights.
__device__ __forceinline__ void AfterEarlierKernels() {
  LetNextKernelBegin();
  AwaitLastKernel();
}

// Starts the load of a line of global memory to L2.
__device__ __forceinline__ void PrefetchToL2([[maybe_unused]] const void* global) {
#if defined(__CUDACC__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}

// Starts the load of `bytes` bytes, a multiple of 16, to L2. Nothing before sm_90.
__device__ __forceinline__ void PrefetchRange([[maybe_unused]] const void* global,
                                              [[maybe_unused]] unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes));
#endif
}

// A barrier of `threads` threads of a thread block, a multiple of 32, that name it. 0 is the one of
// __syncthreads.
template <int kName>
__device__ __forceinline__ void SyncNamed(int threads) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "r"(threads) : "memory");
#else
  simt::SyncNamed(kName, threads);
#endif
}

// Starts the copy of 16 bytes from global to shared memory, both aligned to 16; stores zeros if not
// `valid`. This thread sees them after WaitCopies, its thread block after a barrier after that.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(shared);
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
#else
  simt::CopyAsync(shared, global, 16, valid ? 16 : 0);
#endif
}

// CopyAsync16 of the first `valid` bytes, at most 16; stores zeros in the place of the others.
__device__ __forceinline__ void CopyAsyncFirst(void* shared, const void* global, int valid) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(valid)
               : "memory");
#else
  simt::CopyAsync(shared, global, 16, valid);
#endif
}

// CopyAsync16 for 4 bytes, both places aligned to 4.
__device__ __forceinline__ void CopyAsync4(void* shared, const void* global, bool valid) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(shared);
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
#else
  simt::CopyAsync(shared, global, 4, valid ? 4 : 0);
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void CommitCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  simt::CommitCopies();
#endif
}

// Waits until at most `kPending` groups of this thread are in progress.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  simt::WaitCopies(kPending);
#endif
}

// Sets a counter of global memory after all that this thread, and the lanes that it has synchronised
// with, stored before.
__device__ __forceinline__ void Publish(int32_t* counter, int32_t value) {
#if defined(__CUDACC__)
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
#else
  *counter = value;
#endif
}

// The value of a counter. What was stored before it was set is visible to this thread after.
__device__ __forceinline__ int32_t LoadCounter(const int32_t* counter) {
#if defined(__CUDACC__)
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
#else
  return *counter;
#endif
}

// Waits until a counter is at least `value`.
__device__ __forceinline__ void AwaitCounter(const int32_t* counter, int32_t value) {
#if defined(__CUDACC__)
  while (LoadCounter(counter) < value) {
  }
#else
  if (LoadCounter(counter) < value) std::abort();  // kernels run one after the other
#endif
}

// Adds one to a counter of global memory after all that this thread, and the lanes that it has
// synchronised with, stored before. Returns its value before. What other threads stored before they
// added is visible to this thread after, and to the lanes that it synchronises with.
__device__ __forceinline__ int32_t CountArrival(int32_t* counter) {
#if defined(__CUDACC__)
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
#else
  return (*counter)++;
#endif
}

// CountArrival for a counter of shared memory and the threads of the block.
__device__ __forceinline__ int32_t CountArrivalInBlock(int32_t* counter) {
#if defined(__CUDACC__)
  const auto address = SharedAddress(counter);
  int32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "r"(address)
               : "memory");
  return before;
#else
  return (*counter)++;
#endif
}

// tanh with a relative error of 2^-11, for values that are rounded to 16 bits next. The emulation is
// as inexact.
__device__ __forceinline__ float FastTanh(float x) {
#if defined(__CUDACC__)
  float out;
  asm("tanh.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return BitsFloat((FloatBits(std::tanh(x)) + 0x1000u) & 0xffffe000u);
#endif
}

// e^x for x <= 0, with a relative error of 2^-17, for values that are rounded to bf16 next. The
// product with log2(e) is rounded, which counts the more the smaller the result. The emulation is as
// inexact.
__device__ __forceinline__ float FastExp(float x) {
#if defined(__CUDACC__)
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.44269504f));
  return out;
#else
  return BitsFloat((FloatBits(std::exp(x)) + 0x20u) & 0xffffffc0u);
#endif
}

__device__ __forceinline__ float WarpSum(float value) {
  // A fixed tree.
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

__device__ __forceinline__ float WarpMax(float value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// Returns the sum over a block of `threads` threads (a multiple of 32, at most 1024) to all of
// them. scratch: 32 floats of shared memory.
__device__ __forceinline__ float BlockSum(float value, int threads, float* scratch) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  value = WarpSum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  const float total = WarpSum(lane < threads / kWarpSize ? scratch[lane] : 0.0f);
  __syncthreads();
  return total;
}

__device__ __forceinline__ float BlockMax(float value, int threads, float* scratch) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  value = WarpMax(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  const float top = WarpMax(scratch[lane < threads / kWarpSize ? lane : 0]);
  __syncthreads();
  return top;
}

}  // namespace polysketch::cuda
