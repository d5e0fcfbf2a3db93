// The kernels that measure a device read and copy all bytes, and the ring of bulk copies that one of
// them and others use gives each piece to all readers, in any schedule. Under the emulation, whose
// thread blocks run one after the other: barriers of one block only.
#include "bench/cuda/ceilings.cuh"

#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/cuda/device.h"

namespace polysketch::cuda {
namespace {

class CeilingsTest : public ::testing::Test {
 protected:
  uint32_t Sum(const DeviceArray<uint32_t>& sums) {
    uint32_t sum = 0;
    for (size_t i = 0; i < sums.size(); ++i) sum ^= sums.data()[i];
    return sum;
  }
  uint4* Pieces(const DeviceArray<uint32_t>& words) {
    return reinterpret_cast<uint4*>(words.data());
  }

  const std::unique_ptr<Device> device_ = std::move(Device::Open()).value();
};

// Every thread block adds up what its readers have read, piece by piece, with a factor for the piece.
constexpr int kSmallPiece = 512, kSmallStages = 3, kReaders = 2;
using SmallRing = CopyRing<kSmallStages>;

__global__ void WeighPieces(const uint32_t* from, int pieces, bool bulk, uint32_t* sums) {
  const SmallRing ring(SharedMemory<uint8_t>(), kSmallPiece);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (threadIdx.x == 0) ring.Init(bulk ? 1 : kWarpSize, kReaders);
  __syncthreads();
  if (warp == kReaders) {
    for (int i = 0; i < pieces && (lane == 0 || !bulk); ++i) {
      const uint32_t* piece = from + i * kSmallPiece / 4;
      uint8_t* stage = ring.Begin(i);
      if (bulk) {
        ring.Announce(i, kSmallPiece);
        for (int at : {0, kSmallPiece / 2}) ring.Copy(i, at, piece + at / 4, kSmallPiece / 2);
      } else {
        CopyAsync16(stage + 16 * lane, piece + 4 * lane, true);
        ring.End(i);
      }
    }
    return;
  }
  uint32_t sum = 0;
  for (int i = 0; i < pieces; ++i) {
    const auto* words = reinterpret_cast<const uint32_t*>(ring.Await(i));
    for (int w = lane; w < kSmallPiece / 4; w += kWarpSize) {
      sum += words[w] * (2 * i + 1);
    }
    ring.Release(i);
  }
  sums[threadIdx.x] = sum;
}

TEST_F(CeilingsTest, TheRingGivesEveryPieceToAllReaders) {
  constexpr int kPieces = 20, kWords = kSmallPiece / 4;
  DeviceArray<uint32_t> words(device_.get(), kPieces * kWords);
  DeviceArray<uint32_t> sums(device_.get(), kReaders * kWarpSize);
  device_->Launch(FillWords, dim3(2), 64, 0, words.data(), words.size());
  for (int seed = 0; seed < 100; ++seed) {
    simt::Seed(seed);
    device_->Launch(WeighPieces, dim3(1), (kReaders + 1) * kWarpSize,
                    SmallRing::SharedBytes(kSmallPiece), words.data(), kPieces, seed % 2 == 0,
                    sums.data());
    for (int lane = 0; lane < kReaders * kWarpSize; ++lane) {
      uint32_t want = 0;
      for (int i = 0; i < kPieces; ++i) {
        for (int w = lane % kWarpSize; w < kWords; w += kWarpSize) {
          want += words.data()[i * kWords + w] * (2 * i + 1);
        }
      }
      ASSERT_EQ(sums.data()[lane], want) << "schedule " << seed << " element " << lane;
    }
  }
}

TEST_F(CeilingsTest, CopiesAndReadsCoverAllBytes) {
  constexpr int kBlocks = 3, kCount = 13 * kRingPiece / 4;
  DeviceArray<uint32_t> from(device_.get(), kCount), to(device_.get(), kCount);
  device_->Launch(FillWords, dim3(2), 64, 0, from.data(), kCount);
  uint32_t want = 0;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(from.data()[i], static_cast<uint32_t>(i + 1) * 2654435761u);
    want ^= from.data()[i];
  }
  device_->Launch(CopyPieces, dim3(kBlocks), kCeilingThreads, 0, Pieces(from), Pieces(to),
                  kCount / 4);
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(to.data()[i], from.data()[i]) << "element " << i;
  DeviceArray<uint32_t> sums(device_.get(), kBlocks * kCeilingThreads);
  device_->Launch(ReadPieces, dim3(kBlocks), kCeilingThreads, 0, Pieces(from), kCount / 4,
                  sums.data());
  EXPECT_EQ(Sum(sums), want);
  device_->Zero(sums.data(), sums.size() * sizeof(uint32_t));
  device_->Launch(ReadByRing, dim3(kBlocks), kRingThreads, ReadRing::SharedBytes(kRingPiece),
                  reinterpret_cast<const uint8_t*>(from.data()), int64_t{kCount} * 4, sums.data());
  EXPECT_EQ(Sum(sums), want);
}

TEST_F(CeilingsTest, BarriersOfOneBlockEnd) {
  constexpr int kRounds = 5;
  DeviceArray<int32_t> words(device_.get(), 4 * kFlagStride);
  device_->Zero(words.data(), words.size() * sizeof(int32_t));
  int32_t* const faults = words.data() + kFlagStride;
  const RoundCheck check{faults + kFlagStride, faults};
  device_->Launch(CounterBarriers, dim3(1), 64, 0, words.data(), kRounds, check);
  EXPECT_EQ(words.data()[0], kRounds);
  device_->Zero(words.data(), words.size() * sizeof(int32_t));
  device_->Launch(FlagBarriers, dim3(1), 64, 0, words.data(), kRounds, check);
  EXPECT_EQ(words.data()[0], kRounds);
  EXPECT_EQ(*faults, 0);
  device_->Zero(words.data(), words.size() * sizeof(int32_t));
  device_->Launch(FlagRounds, dim3(1), 1, 0, words.data(), kRounds, faults);
  EXPECT_EQ(words.data()[0], kRounds);
  EXPECT_EQ(*faults, 0);
}

// A wait that never ends is a fault: a block waits for one that has not run.
TEST_F(CeilingsTest, AWaitWithoutEndIsCounted) {
  DeviceArray<int32_t> words(device_.get(), 4 * kFlagStride);
  device_->Zero(words.data(), words.size() * sizeof(int32_t));
  int32_t* const faults = words.data() + 3 * kFlagStride;
  device_->Launch(FlagRounds, dim3(2), 1, 0, words.data(), 3, faults);
  EXPECT_GT(*faults, 0);
}

}  // namespace
}  // namespace polysketch::cuda
