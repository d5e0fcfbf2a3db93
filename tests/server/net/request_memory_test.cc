#include "server/net/request_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace polysketch {
namespace {

TEST(RequestMemoryTest, RefusesWhatDoesNotFit) {
  RequestMemory memory(100);
  EXPECT_TRUE(memory.TryAdd(RequestPhase::kMessage, {"a"}, 60));
  EXPECT_FALSE(memory.TryAdd(RequestPhase::kReply, {"b"}, 41));
  EXPECT_TRUE(memory.TryAdd(RequestPhase::kReply, {"b"}, 30));
  memory.Subtract(RequestPhase::kMessage, {"a"}, 60);
  const RequestMemory::Stats stats = memory.stats();
  EXPECT_EQ(stats.limit, 100);
  EXPECT_EQ(stats.bytes, (std::array<int64_t, 4>{0, 0, 0, 30}));
  EXPECT_EQ(stats.refused, (std::array<uint64_t, 4>{0, 0, 0, 1}));
}

TEST(RequestMemoryTest, AClientLeavesRoomForOthers) {
  RequestMemory memory(1600);
  EXPECT_EQ(memory.client_limit(), 1200);
  const auto take = [&memory](const std::string& client) {
    int64_t bytes = 0;
    while (memory.TryAdd(RequestPhase::kUpload, {client}, 1)) ++bytes;
    return bytes;
  };
  EXPECT_EQ(take("a"), 1200);
  EXPECT_EQ(take("b"), 300);  // three quarters of what "a" has left
  EXPECT_EQ(take("c"), 75);
  EXPECT_EQ(take("a"), 0);
  // "a" has more than its share now, and gets nothing back while the others hold theirs.
  memory.Subtract(RequestPhase::kUpload, {"a"}, 300);
  EXPECT_EQ(take("a"), 18);
  memory.Subtract(RequestPhase::kUpload, {"a"}, 918);
  EXPECT_EQ(take("b"), 843);  // of the 1525 that "c" has left
  EXPECT_EQ(memory.stats().bytes[1], 1218);
}

TEST(RequestMemoryTest, AHugeSizeDoesNotOverflow) {
  RequestMemory memory(100);
  EXPECT_TRUE(memory.TryAdd(RequestPhase::kUpload, {"a"}, 1));
  EXPECT_FALSE(memory.TryAdd(RequestPhase::kUpload, {"a"}, INT64_MAX));
}

TEST(RequestMemoryTest, AHolderTakesItsBytesBack) {
  RequestMemory memory(100);
  {
    HeldMemory held(&memory, RequestPhase::kUpload, {"a"});
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
        if (!memory.TryAdd(RequestPhase::kRequest, {"a"}, 4)) continue;
        if (memory.stats().bytes[2] > 10) exceeded = true;
        memory.Subtract(RequestPhase::kRequest, {"a"}, 4);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(memory.stats().bytes[2], 0);
}

// What many small requests take and give back, one after the other, stays where it is.
TEST(RequestMemoryTest, WhatIsFreedIsReturnedOnce) {
  RequestMemory memory(1000);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(memory.TryAdd(RequestPhase::kMessage, {"a"}, 10));
    memory.Subtract(RequestPhase::kMessage, {"a"}, 10);
  }
  EXPECT_FALSE(memory.TakeFreed(11));
  ASSERT_TRUE(memory.TryAdd(RequestPhase::kMessage, {"a"}, 500));
  EXPECT_FALSE(memory.TakeFreed(11));
  memory.Subtract(RequestPhase::kMessage, {"a"}, 300);
  EXPECT_TRUE(memory.TakeFreed(300));
  EXPECT_FALSE(memory.TakeFreed(1));
  memory.Subtract(RequestPhase::kMessage, {"a"}, 200);
  EXPECT_TRUE(memory.TakeFreed(200));
}

}  // namespace
}  // namespace polysketch
