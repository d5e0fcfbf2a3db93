#include "server/rpc/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
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

// Pieces of work that wait until they are released.
class Blocking {
 public:
  void Post(Executor* executor, const std::string& owner) {
    executor->Post(
        [this, owner] {
          std::unique_lock lock(mutex_);
          ++running_[owner];
          changed_.notify_all();
          changed_.wait(lock, [this] { return released_; });
          --running_[owner];
          ++ended_;
        },
        {owner});
  }
  bool Reaches(const std::string& owner, int running) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return running_[owner] == running; });
  }
  int running(const std::string& owner) {
    std::lock_guard lock(mutex_);
    return running_[owner];
  }
  void Release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  int ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> running_;
  int ended_ = 0;
  bool released_ = false;
};

TEST(ExecutorTest, OwnersTakeTurns) {
  std::string order;
  Executor executor(1);
  Blocking first;  // the others are all posted before one of them runs
  first.Post(&executor, "first");
  ASSERT_TRUE(first.Reaches("first", 1));
  const auto post = [&](const std::string& owner) {
    executor.Post([&order, owner] { order += owner; }, {owner});
  };
  for (const char* owner : {"a", "a", "a", "a", "b", "c", "b"}) post(owner);
  first.Release();
  executor.Stop();
  EXPECT_EQ(order, "abcabaa");
}

TEST(ExecutorTest, AnOwnerLeavesThreadsForOthers) {
  Blocking blocking;
  Executor executor(8, Executor::Threads::kShares);
  for (int i = 0; i < 20; ++i) blocking.Post(&executor, "a");
  EXPECT_TRUE(blocking.Reaches("a", 6));
  for (int i = 0; i < 20; ++i) blocking.Post(&executor, "b");
  EXPECT_TRUE(blocking.Reaches("b", 1));
  // The work of a third one ends, and it ends again and again.
  for (int i = 0; i < 50; ++i) {
    std::promise<void> ended;
    executor.Post([&ended] { ended.set_value(); }, {"c"});
    ASSERT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  }
  EXPECT_EQ(blocking.running("a"), 6);
  EXPECT_EQ(blocking.running("b"), 1);
  blocking.Release();
  executor.Stop();
  EXPECT_EQ(blocking.ended(), 40);
}

TEST(ExecutorTest, AnOwnerUsesAllThreadsItMay) {
  for (const int threads : {1, 2, 4, 8}) {
    Blocking blocking;
    Executor executor(threads, Executor::Threads::kShares);
    for (int i = 0; i < 20; ++i) blocking.Post(&executor, "a");
    EXPECT_TRUE(blocking.Reaches("a", std::max(1, threads * 3 / 4))) << threads;
    blocking.Release();
    executor.Stop();
    EXPECT_EQ(blocking.ended(), 20);
  }
  Blocking blocking;
  Executor executor(8);
  for (int i = 0; i < 20; ++i) blocking.Post(&executor, "a");
  EXPECT_TRUE(blocking.Reaches("a", 8));
  blocking.Release();
}

// All posted work runs, whatever owners have it: no thread sleeps while work may start.
TEST(ExecutorTest, WorkOfManyOwnersAllRuns) {
  std::atomic<int> ran = 0;
  Executor executor(4, Executor::Threads::kShares);
  for (int i = 0; i < 5000; ++i) {
    executor.Post([&ran] { ++ran; }, {std::string(1, static_cast<char>('a' + i * 7 % 5))});
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ran < 5000 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(ran, 5000);
}

TEST(ExecutorTest, ProgressHasThePieceThatHasNotMovedForLongest) {
  Executor executor(2);
  EXPECT_FALSE(executor.progress().oldest.has_value());
  std::promise<void> started, go_on, moved, release;
  const auto before = std::chrono::steady_clock::now();
  executor.Post([&] {
    started.set_value();
    go_on.get_future().wait();
    RunningWork::Moved();
    moved.set_value();
    release.get_future().wait();
  });
  started.get_future().wait();
  const auto after = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {  // the other thread finishes work
    std::promise<void> ended;
    executor.Post([&ended] { ended.set_value(); });
    ended.get_future().wait();
  }
  const WorkProgress progress = executor.progress();
  EXPECT_GE(progress.done, 9);
  ASSERT_TRUE(progress.oldest.has_value());
  EXPECT_GE(*progress.oldest, before);
  EXPECT_LE(*progress.oldest, after);
  go_on.set_value();
  moved.get_future().wait();
  EXPECT_GT(*executor.progress().oldest, after);
  release.set_value();
  executor.Stop();
  EXPECT_FALSE(executor.progress().oldest.has_value());
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
