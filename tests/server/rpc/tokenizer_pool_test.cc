#include "server/rpc/tokenizer_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/tokenizer/encode_pace.h"

namespace polysketch {
namespace {

constexpr int64_t kSlice = EncodePace::kBytes;
constexpr int64_t kLarge = 10 * kSlice;
constexpr int kThreads = 9;
// Longer than any test: no turn is overdue.
constexpr std::chrono::hours kLongTurn(1);

class TokenizerPoolTest : public ::testing::Test {
 protected:
  // Keeps the only turn until `go_` is set, so that what is posted waits.
  TokenizerPool::Ticket Block(TokenizerPool* pool) {
    const auto started = std::make_shared<std::promise<void>>();
    TokenizerPool::Ticket ticket = pool->Post({"blocker", ""}, 1, [this, started] {
      started->set_value();
      go_.get_future().wait();
    });
    started->get_future().wait();
    return ticket;
  }
  // Work that records its name once for each slice.
  std::function<void()> Slices(const std::string& name, int64_t bytes) {
    return [this, name, bytes] {
      for (int64_t done = 0; done < bytes; done += kSlice) {
        {
          std::lock_guard lock(mutex_);
          order_ += name;
        }
        if (!EncodePace::OfThread()->Continue(kSlice)) break;
      }
      ++ended_;
    };
  }
  void WaitForEnd(int count) {
    while (ended_ < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::promise<void> go_;
  std::mutex mutex_;
  std::string order_;  // guarded by mutex_
  std::atomic<int> ended_ = 0;
};

TEST_F(TokenizerPoolTest, LargeWorkOfTwoGroupsTakesTurns) {
  TokenizerPool pool(kThreads, kLongTurn);
  Block(&pool);
  pool.Post({"a", "1"}, 4 * kSlice, Slices("a", 4 * kSlice));
  pool.Post({"b", "1"}, 4 * kSlice, Slices("b", 4 * kSlice));
  go_.set_value();
  WaitForEnd(2);
  EXPECT_EQ(order_, "abababab");
}

TEST_F(TokenizerPoolTest, AGroupOfManyConnectionsGetsOneShare) {
  TokenizerPool pool(kThreads, kLongTurn);
  Block(&pool);
  for (int i = 0; i < 3; ++i)
    pool.Post({"a", std::to_string(i)}, 4 * kSlice, Slices("a", 4 * kSlice));
  pool.Post({"b", "1"}, 4 * kSlice, Slices("b", 4 * kSlice));
  go_.set_value();
  WaitForEnd(4);
  EXPECT_EQ(order_.substr(0, 8), "abababab");
}

TEST_F(TokenizerPoolTest, SmallWorkWaitsForNoLargeText) {
  TokenizerPool pool(kThreads, kLongTurn);
  Block(&pool);
  for (int i = 0; i < 20; ++i) pool.Post({"a", std::to_string(i)}, kLarge, Slices("a", kLarge));
  pool.Post({"a", "0"}, 100, Slices("s", 100));  // of a connection with large work
  pool.Post({"b", "1"}, 100, Slices("t", 100));
  go_.set_value();
  WaitForEnd(22);
  EXPECT_LE(order_.find('t'), 2u) << order_;
  EXPECT_LE(order_.find('s'), 25u) << order_;
}

TEST_F(TokenizerPoolTest, DroppedWorkNeverStartsAndIsDestroyedAtOnce) {
  TokenizerPool pool(kThreads, kLongTurn);
  Block(&pool);
  auto held = std::make_shared<int>(0);
  const auto ticket = pool.Post({"a", "1"}, kLarge, [held] { ++*held; });
  pool.Drop(ticket);
  EXPECT_EQ(held.use_count(), 1);
  pool.Drop(ticket);
  pool.Drop(nullptr);
  pool.Post({"a", "1"}, kLarge, Slices("a", kSlice));
  go_.set_value();
  WaitForEnd(1);
  EXPECT_EQ(*held, 0);
}

TEST_F(TokenizerPoolTest, WorkThatHasStartedStopsAtItsNextSlice) {
  TokenizerPool pool(kThreads, kLongTurn);
  std::promise<void> started, dropped;
  const auto ticket = pool.Post({"a", "1"}, kLarge, [&] {
    started.set_value();
    dropped.get_future().wait();
    while (EncodePace::OfThread()->Continue(kSlice)) {
    }
    ++ended_;
  });
  started.get_future().wait();
  pool.Drop(ticket);
  dropped.set_value();
  WaitForEnd(1);
}

TEST_F(TokenizerPoolTest, WorkThatNeverPausesHoldsUpNoOtherWork) {
  TokenizerPool pool(kThreads);
  Block(&pool);
  const auto begin = std::chrono::steady_clock::now();
  pool.Post({"a", "1"}, kLarge, Slices("a", kLarge));
  WaitForEnd(1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  go_.set_value();
}

TEST_F(TokenizerPoolTest, StopDropsWhatWaits) {
  auto held = std::make_shared<int>(0);
  auto pool = std::make_unique<TokenizerPool>(kThreads, kLongTurn);
  Block(pool.get());
  for (int i = 0; i < 40; ++i) pool->Post({"a", "1"}, kLarge, [held] { ++*held; });
  std::thread stop([&] { pool->Stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  go_.set_value();
  stop.join();
  EXPECT_EQ(held.use_count(), 1);
  pool->Post({"a", "1"}, 1, [held] { ++*held; });
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
}

TEST_F(TokenizerPoolTest, ManyThreadsPostAndDrop) {
  std::atomic<int> ran = 0;  // outlives the pool, which still works when the test has seen enough
  TokenizerPool pool(kThreads, kLongTurn);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const auto ticket =
            pool.Post({std::to_string(t), std::to_string(i % 3)}, i % 2 == 0 ? 10 : kLarge, [&ran] {
              EncodePace::OfThread()->Continue(kSlice);
              ++ran;
            });
        if (i % 5 == 0) pool.Drop(ticket);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (ran < 4 * 240) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(ran, 4 * 300);
}

}  // namespace
}  // namespace polysketch
