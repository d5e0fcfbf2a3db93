// The machine itself: what it must find, and what its instructions compute.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "base/half.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.cuh"
#include "tests/testing/random.h"

namespace polysketch::cuda {
namespace {

std::unique_ptr<Device> Open() {
  auto device = Device::Open();
  return std::move(device).value();
}

// Every thread passes a value to its neighbour through shared memory.
__global__ void Pass(int* out, bool barrier) {
  auto* shared = SharedMemory<int>();
  const int n = static_cast<int>(blockDim.x);
  shared[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  if (barrier) __syncthreads();
  out[threadIdx.x] = shared[(threadIdx.x + n / 2) % n];
}

TEST(SimtTest, AMissingBarrierShows) {
  const auto device = Open();
  int wrong = 0;
  for (int seed = 0; seed < 10; ++seed) {
    simt::Seed(seed);
    for (const bool barrier : {true, false}) {
      std::vector<int> out(128);
      device->Launch(Pass, dim3(1), 128, 128 * sizeof(int), out.data(), barrier);
      for (int i = 0; i < 128; ++i) {
        const bool right = out[i] == (i + 64) % 128 + 1;
        ASSERT_TRUE(right || !barrier);
        wrong += !right;
      }
    }
  }
  EXPECT_GT(wrong, 100);
}

// Pass within each half of the threads, which have barriers of their own.
__global__ void PassInHalves(int* out) {
  auto* shared = SharedMemory<int>();
  for (int round = 0; round < 3; ++round) {
    const int thread = static_cast<int>(threadIdx.x), half = thread / 64;
    shared[thread] = 128 * round + thread;
    half == 0 ? SyncNamed<1>(64) : SyncNamed<2>(64);
    out[128 * round + thread] = shared[thread ^ 32];
    half == 0 ? SyncNamed<1>(64) : SyncNamed<2>(64);
  }
}

TEST(SimtTest, NamedBarriersAreForThoseThatNameThem) {
  const auto device = Open();
  for (int seed = 0; seed < 10; ++seed) {
    simt::Seed(seed);
    std::vector<int> out(3 * 128);
    device->Launch(PassInHalves, dim3(1), 128, 128 * sizeof(int), out.data());
    for (int i = 0; i < 3 * 128; ++i) ASSERT_EQ(out[i], i ^ 32);
  }
}

__global__ void Transpose(const uint32_t* in, uint32_t* out) {
  out[threadIdx.x] = TransposeMatrix(in[threadIdx.x]);
}

TEST(SimtTest, MatricesAreTransposed) {
  const auto device = Open();
  uint16_t in[8][8], out[8][8];
  for (int i = 0; i < 64; ++i) in[i / 8][i % 8] = static_cast<uint16_t>(1000 + i);
  device->Launch(Transpose, dim3(1), 32, 0, reinterpret_cast<const uint32_t*>(in),
                 reinterpret_cast<uint32_t*>(out));
  for (int i = 0; i < 64; ++i) ASSERT_EQ(out[i % 8][i / 8], in[i / 8][i % 8]);
}

// Every block stores when it came.
__global__ void Arrive(int32_t* counter, int32_t* order) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  order[block] = CountArrival(counter);
}

TEST(SimtTest, BlocksRunInADrawnOrderEachOnce) {
  const auto device = Open();
  std::set<int32_t> last;
  for (int seed = 0; seed < 20; ++seed) {
    simt::Seed(seed);
    int32_t counter = 0;
    std::vector<int32_t> order(3 * 4 * 5, -1);
    device->Launch(Arrive, dim3(3, 4, 5), 1, 0, &counter, order.data());
    EXPECT_EQ(counter, std::ssize(order));
    last.insert(order.back());
    std::ranges::sort(order);
    for (int32_t i = 0; i < std::ssize(order); ++i) EXPECT_EQ(order[i], i);
  }
  EXPECT_GT(last.size(), 10u) << "the last block comes at any time";
}

__global__ void CopyThrough(const uint16_t* in, uint16_t* out, bool wait) {
  auto* shared = SharedMemory<uint16_t>();
  CopyAsync16(shared + 8 * threadIdx.x, in + 8 * threadIdx.x, threadIdx.x != 5);
  CommitCopies();
  if (wait) WaitCopies<0>();
  for (int i = 0; i < 8; ++i) out[8 * threadIdx.x + i] = shared[8 * threadIdx.x + i];
}

TEST(SimtTest, AMissingWaitShows) {
  const auto device = Open();
  std::vector<uint16_t> in(32 * 8), waited(in.size()), early(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  device->Launch(CopyThrough, dim3(1), 32, 512, in.data(), waited.data(), true);
  device->Launch(CopyThrough, dim3(1), 32, 512, in.data(), early.data(), false);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(waited[i], i / 8 == 5 ? 0 : i);
  EXPECT_NE(early, waited);
}

// One product whose fragments are filled by the layout that the PTX manual gives.
__global__ void OneProduct(const uint16_t* A, const uint16_t* B, float* C) {
  auto* shared = SharedMemory<uint16_t>();
  for (int i = threadIdx.x; i < 256; i += 32) shared[i] = A[i];
  for (int i = threadIdx.x; i < 256; i += 32)
    shared[256 + i] = i % 16 < 8 ? B[i / 16 * 8 + i % 16] : 0;
  __syncthreads();
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t a[4], b[4];
  LoadMatrix4(a, shared + lane % 16 * 16 + lane / 16 * 8);
  LoadMatrix4T(b, shared + 256 + lane % 16 * 16 + lane / 16 * 8);
  float c[4] = {0, 0, 0, 0};
  MmaBf16(c, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) C[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

TEST(SimtTest, MmaIsAProduct) {
  const auto device = Open();
  testing::Random random(1);
  std::vector<uint16_t> A(16 * 16), B(16 * 8);
  for (uint16_t& x : A) x = FloatToBf16(static_cast<float>(random.Int(-9, 9)));
  for (uint16_t& x : B) x = FloatToBf16(static_cast<float>(random.Int(-9, 9)));
  std::vector<float> C(16 * 8);
  device->Launch(OneProduct, dim3(1), 32, 1024, A.data(), B.data(), C.data());
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += Bf16ToFloat(A[i * 16 + k]) * Bf16ToFloat(B[k * 8 + j]);
      EXPECT_EQ(C[i * 8 + j], sum) << i << " " << j;
    }
  }
}

__global__ void OneProductOfBytes(const int8_t* A, const int8_t* B, int32_t* C) {
  auto* shared = SharedMemory<int8_t>();  // A, row by row
  for (int i = threadIdx.x; i < 512; i += 32) shared[i] = A[i];
  __syncthreads();
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t a[4], b[2] = {};
  LoadMatrix4(a, shared + lane % 16 * 32 + lane / 16 * 16);
  for (int i = 0; i < 4; ++i) {
    b[0] |= static_cast<uint32_t>(static_cast<uint8_t>(B[(4 * t + i) * 8 + g])) << 8 * i;
    b[1] |= static_cast<uint32_t>(static_cast<uint8_t>(B[(16 + 4 * t + i) * 8 + g])) << 8 * i;
  }
  int32_t c[4] = {1, 1, 1, 1};
  MmaBytes(c, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) C[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

TEST(SimtTest, MmaOfBytesIsAProduct) {
  const auto device = Open();
  testing::Random random(1);
  std::vector<int8_t> A(16 * 32), B(32 * 8);
  for (int8_t& x : A) x = static_cast<int8_t>(random.Int(-128, 127));
  for (int8_t& x : B) x = static_cast<int8_t>(random.Int(-128, 127));
  std::vector<int32_t> C(16 * 8);
  device->Launch(OneProductOfBytes, dim3(1), 32, 512, A.data(), B.data(), C.data());
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      int32_t sum = 1;
      for (int k = 0; k < 32; ++k) sum += A[i * 32 + k] * B[k * 8 + j];
      EXPECT_EQ(C[i * 8 + j], sum) << i << " " << j;
    }
  }
}

__global__ void HalfWarp() {
  if (threadIdx.x < 16) WarpSum(1.0f);
}
__global__ void MixedCollectives(float* out) {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    out[threadIdx.x] = WarpSum(1.0f);
  }
}
__global__ void WriteBeside(float* out) { out[threadIdx.x] = 1; }

TEST(SimtDeathTest, WhatWouldHangOrCorruptEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = Open();
  EXPECT_DEATH(device->Launch(HalfWarp, dim3(1), 32, 0), "deadlock");
  EXPECT_DEATH(device->Launch(MixedCollectives, dim3(1), 32, 0, nullptr), "meet in");
  DeviceArray<float> array(device.get(), 31);
  EXPECT_DEATH(device->Launch(WriteBeside, dim3(1), 32, 0, array.data()), "wrote beside an array");
}

__global__ void CopyWords(const int* in, int* out, int count) {
  for (int i = threadIdx.x; i < count; i += 32) out[i] = in[i];
}

// A copy of the runtime reads the host's array late; the backend's own one does not.
TEST(SimtTest, AHostArrayMayChangeAfterCopyIn) {
  const auto device = Open();
  for (const int count : {5, 1 << 19}) {  // staged; waited for
    std::vector<int> host(count, 1), out(count);
    DeviceArray<int> array(device.get(), count);
    device->CopyIn(array.data(), host.data(), count * sizeof(int));
    host.assign(count, 2);
    device->Launch(CopyWords, dim3(1), 32, 0, array.data(), out.data(), count);
    EXPECT_EQ(out, std::vector<int>(count, 1));
  }
  int host = 1, out = 0;
  DeviceArray<int> array(device.get(), 1);
  cudaMemcpyAsync(array.data(), &host, sizeof(int), cudaMemcpyHostToDevice, device->stream());
  host = 2;
  device->Launch(CopyWords, dim3(1), 32, 0, array.data(), &out, 1);
  EXPECT_EQ(out, 2);
}

// The memory for staged copies is used again only after they were made.
TEST(SimtTest, ManyCopiesInARow) {
  const auto device = Open();
  constexpr int kCount = 100000, kCopies = 40;  // 16 MB
  DeviceArray<int> array(device.get(), kCount);
  std::vector<int> out(kCount);
  for (int i = 0; i < kCopies; ++i) {
    const std::vector<int> host(kCount, i);
    device->CopyIn(array.data(), host.data(), kCount * sizeof(int));
    if (i % 7 != 0) continue;
    device->Launch(CopyWords, dim3(1), 32, 0, array.data(), out.data(), kCount);
    EXPECT_EQ(out, host);
  }
}

TEST(SimtTest, Bf16RoundsToNearestEven) {
  testing::Random random(2);
  for (int i = 0; i < 10000; ++i) {
    const auto x = static_cast<float>(random.Normal());
    EXPECT_EQ(RoundBf16(x), FloatToBf16(x));
  }
}

TEST(SimtTest, AnInjectedFaultStays) {
  setenv("POLYSKETCH_CUDA_FAIL_AFTER", "1", 1);
  const auto device = Open();
  unsetenv("POLYSKETCH_CUDA_FAIL_AFTER");
  std::vector<int> out(32, -1);
  device->Launch(Pass, dim3(1), 32, 128, out.data(), true);
  EXPECT_TRUE(device->status().ok());
  EXPECT_EQ(out[0], 17);
  device->Launch(Pass, dim3(1), 32, 128, out.data(), true);
  EXPECT_EQ(device->status().code(), Code::kInternal);
  EXPECT_EQ(device->Allocate(64), nullptr);
}

}  // namespace
}  // namespace polysketch::cuda
