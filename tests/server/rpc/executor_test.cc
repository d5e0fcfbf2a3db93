#include "server/rpc/executor.h"

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

TEST(ExecutorTest, InTheOrderOfPosting) {
  std::vector<int> order;
  Executor executor(1);
  for (int i = 0; i < 100; ++i) executor.Post([&order, i] { order.push_back(i); });
  executor.Stop();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  executor.Post([&order] { order.clear(); });  // dropped
  EXPECT_EQ(order.size(), 100u);
}

TEST(ExecutorTest, OwnersTakeTurns) {
  std::string order;
  Executor executor(1);
  executor.Hold();
  const auto post = [&](const std::string& owner) {
    executor.Post([&order, owner] { order += owner; }, owner);
  };
  for (const char* owner : {"a", "a", "a", "a", "b", "c", "b"}) post(owner);
  executor.Stop();
  EXPECT_EQ(order, "abcabaa");
}

TEST(ExecutorTest, WhatWasHeldRunsWhenReleased) {
  Executor executor(1);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> ran = 0;
    std::promise<void> last;
    executor.Hold();
    for (int i = 0; i < 5; ++i) executor.Post([&ran] { ++ran; });
    executor.Post([&last] { last.set_value(); });
    executor.Release();
    last.get_future().wait();
    EXPECT_EQ(ran, 5);
  }
}

TEST(ExecutorTest, StopRunsWhatIsHeld) {
  int ran = 0;
  Executor executor(2);
  executor.Hold();
  executor.Post([&ran] { ++ran; });
  executor.Stop();
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace polysketch
