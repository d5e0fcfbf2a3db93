#include "server/net/request_memory.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace polysketch {
namespace {

TEST(RequestMemoryTest, RefusesWhatDoesNotFit) {
  RequestMemory memory(100);
  EXPECT_TRUE(memory.TryAdd(RequestPhase::kMessage, 60));
  EXPECT_FALSE(memory.TryAdd(RequestPhase::kReply, 41));
  EXPECT_TRUE(memory.TryAdd(RequestPhase::kReply, 40));
  memory.Subtract(RequestPhase::kMessage, 60);
  const RequestMemory::Stats stats = memory.stats();
  EXPECT_EQ(stats.limit, 100);
  EXPECT_EQ(stats.bytes, (std::array<int64_t, 4>{0, 0, 0, 40}));
  EXPECT_EQ(stats.refused, (std::array<uint64_t, 4>{0, 0, 0, 1}));
}

TEST(RequestMemoryTest, AHugeSizeDoesNotOverflow) {
  RequestMemory memory(100);
  EXPECT_TRUE(memory.TryAdd(RequestPhase::kUpload, 1));
  EXPECT_FALSE(memory.TryAdd(RequestPhase::kUpload, INT64_MAX));
}

TEST(RequestMemoryTest, AHolderTakesItsBytesBack) {
  RequestMemory memory(100);
  {
    HeldMemory held(&memory, RequestPhase::kUpload);
    EXPECT_TRUE(held.TryAdd(70));
    EXPECT_FALSE(held.TryAdd(31));
    HeldMemory moved(std::move(held));
    EXPECT_EQ(moved.bytes(), 70);
    EXPECT_EQ(memory.stats().bytes[1], 70);
  }
  EXPECT_EQ(memory.stats().bytes[1], 0);
  EXPECT_TRUE(HeldMemory().TryAdd(1));
}

TEST(RequestMemoryTest, ThreadsNeverExceedTheLimit) {
  RequestMemory memory(10);
  std::atomic<bool> exceeded = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20000; ++n) {
        if (!memory.TryAdd(RequestPhase::kRequest, 4)) continue;
        if (memory.stats().bytes[2] > 10) exceeded = true;
        memory.Subtract(RequestPhase::kRequest, 4);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(memory.stats().bytes[2], 0);
}

}  // namespace
}  // namespace polysketch
