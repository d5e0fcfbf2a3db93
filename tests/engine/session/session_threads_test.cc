// The session table used by several threads at once, over stores that are slow or hang.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/session/session_table.h"
#include "engine/store/measured_store.h"
#include "engine/store/open_state_store.h"
#include "gtest/gtest.h"
#include "tests/engine/session/small_snapshot.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

using testing::At;
using testing::kStateBytes;
using testing::kVocab;

// Holds back the results of operations.
class HangingStore final : public EngineObserver {
 public:
  // Of every operation from now on.
  void Hang() {
    std::lock_guard lock(mutex_);
    hangs_ = true;
  }
  // Of the next operation of this kind alone.
  void HangNext(StoreOperation operation) {
    std::lock_guard lock(mutex_);
    next_ = operation;
  }
  void WaitFor(int operations) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= operations; });
  }
  void GoOn() {
    std::lock_guard lock(mutex_);
    hangs_ = false;
    one_hangs_ = false;
    changed_.notify_all();
  }
  void OnStore(StoreOperation operation, std::chrono::nanoseconds) override {
    std::unique_lock lock(mutex_);
    const bool is_next = next_ == operation;
    if (is_next) next_.reset();
    if (is_next) one_hangs_ = true;
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !hangs_ && !(is_next && one_hangs_); });
    --waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = false;
  bool one_hangs_ = false;
  std::optional<StoreOperation> next_;
  int waiting_ = 0;
};

class SessionThreadsTest : public ::testing::Test {
 protected:
  SessionThreadsTest()
      : store_(NewMeasuredStore(*OpenStateStore("dir:" + folder_.path().string()), &gate_)) {}
  std::unique_ptr<SessionTable> NewTable(size_t memory, int most = 1000) {
    SessionOptions options;
    options.codec.binding.numerics = "test";
    options.codec.limits = {{kVocab, 1000, true}, 1 << 20};
    options.store = store_.get();
    options.memory = memory;
    options.max_per_tenant = most;
    return std::make_unique<SessionTable>(std::move(options));
  }

  testing::TemporaryFolder folder_;
  HangingStore gate_;
  std::unique_ptr<StateStore> store_;
};

TEST_F(SessionThreadsTest, WhatNeedsNoStoreDoesNotWaitForIt) {
  const auto table = NewTable(1 << 20);
  const std::string durable = table->Create({"t"}, true, 0s)->id;
  const std::string passing = table->Create({"t"}, false, 0s)->id;
  EXPECT_TRUE(table->NeedsStore("t", durable));
  EXPECT_FALSE(table->NeedsStore("t", passing));
  EXPECT_TRUE(table->CreateNeedsStore("t", true));
  EXPECT_FALSE(table->CreateNeedsStore("t", false));
  gate_.Hang();
  std::vector<std::thread> waiting;
  waiting.emplace_back([&] { EXPECT_TRUE(table->Create({"t"}, true, 0s).ok()); });
  waiting.emplace_back([&] { EXPECT_TRUE(table->Acquire({"t"}, durable, {}).ok()); });
  waiting.emplace_back([&] { EXPECT_TRUE(table->List("t").ok()); });
  gate_.WaitFor(3);
  // Perhaps with the one that is being made.
  const int before = table->stats().sessions;
  {  // These would never return.
    auto lease = table->Acquire({"t"}, passing, 0);
    ASSERT_TRUE(lease.ok());
    EXPECT_FALSE(table->CommitNeedsStore(*lease, *At(7)));
    EXPECT_TRUE(table->Commit(*std::move(lease), At(7)).ok());
    EXPECT_TRUE(table->Create({"u"}, false, 0s).ok());
    EXPECT_EQ(table->Fork({"t"}, passing, 2, 7)->size(), 2u);
    EXPECT_TRUE(table->Delete("t", passing).ok());
    EXPECT_EQ(table->stats().sessions, before + 2);
  }
  gate_.GoOn();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(table->List("t")->sessions.size(), 4u);
}

TEST_F(SessionThreadsTest, ATenantsLimitHoldsForCreatesAtOnce) {
  const auto table = NewTable(1 << 20, 5);
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 3; ++j) made += table->Create({"t"}, i % 2 == 0, 0s).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 5);
  EXPECT_EQ(table->List("t")->sessions.size(), 5u);
}

// The store counts entries, others are made, and only then does its answer arrive.
TEST_F(SessionThreadsTest, ALimitHoldsAfterAnOutdatedCount) {
  const auto table = NewTable(1 << 20, 5);
  const auto expect_refusal = [&](const auto& make_one) {
    gate_.HangNext(StoreOperation::kOther);
    Status late;
    std::thread thread([&] { late = make_one(true); });
    gate_.WaitFor(1);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(make_one(false).ok()) << i;
    gate_.GoOn();
    thread.join();
    EXPECT_EQ(late.code(), Code::kResourceExhausted) << late.ToString();
  };
  expect_refusal([&](bool) { return table->Create({"t"}, true, 0s).status(); });
  std::string ids[2];
  for (std::string& id : ids) {
    id = table->Create({"u"}, false, 0s, At(7))->id;
  }
  expect_refusal([&](bool late) { return table->TakeSnapshot({"u"}, ids[late], 0s).status(); });
  EXPECT_EQ(table->List("u")->snapshots.size(), 5u);
}

// Listings show the id of a session before it is made. One that is used at once waits for that.
TEST_F(SessionThreadsTest, ASessionThatIsFoundBeforeItIsMadeIsUsedAfterwards) {
  const auto table = NewTable(1 << 20);
  gate_.HangNext(StoreOperation::kPut);
  std::thread making([&] { EXPECT_TRUE(table->Create({"t"}, true, 0s).ok()); });
  gate_.WaitFor(1);
  const std::string id = table->List("t")->sessions.at(0).id;
  std::optional<Result<SessionLease>> lease;
  std::thread using_it([&] { lease.emplace(table->Acquire({"t"}, id, 0)); });
  std::this_thread::sleep_for(20ms);  // either order is right; this one was not
  gate_.GoOn();
  making.join();
  using_it.join();
  ASSERT_TRUE(lease->ok()) << lease->status().ToString();
  EXPECT_EQ(table->stats().sessions, 1);
  EXPECT_EQ(table->List("t")->sessions.size(), 1u);
  EXPECT_TRUE(table->Commit(**std::move(lease), At(7)).ok());
}

// The store is full, so that a session has no room: who has found its id meanwhile finds none.
TEST_F(SessionThreadsTest, ASessionThatIsNotMadeIsUsedByNobody) {
  store_ = NewMeasuredStore(*OpenStateStore("dir:" + folder_.path().string(), 1), &gate_);
  const auto table = NewTable(kStateBytes + kStateBytes / 2);
  const std::string first = table->Create({"t"}, false, 0s, At(7))->id;
  gate_.HangNext(StoreOperation::kPut);
  Status made;
  std::thread making([&] { made = table->Create({"t"}, false, 0s, At(9)).status(); });
  gate_.WaitFor(1);
  std::string second;
  const auto listing = table->List("t");
  for (const SessionInfo& one : listing->sessions) {
    if (one.id != first) second = one.id;
  }
  Status used;
  std::thread using_it([&] { used = table->Acquire({"t"}, second, {}).status(); });
  std::this_thread::sleep_for(20ms);
  gate_.GoOn();
  making.join();
  using_it.join();
  EXPECT_EQ(made.code(), Code::kResourceExhausted) << made.ToString();
  EXPECT_EQ(used.code(), Code::kNotFound) << used.ToString();
  EXPECT_EQ(table->Acquire({"t"}, first, {})->tokens(), 7);
}

// A session that a thread uses while others are moved to the store for memory: each lease begins
// where the last commit ended, and a listing is complete.
TEST_F(SessionThreadsTest, EverySessionGoesOnWhereItWas) {
  constexpr int kSessions = 6, kThreads = 6, kTurns = 60;
  const auto table = NewTable(2 * kStateBytes);
  std::vector<std::string> ids;
  for (int i = 0; i < kSessions; ++i) ids.push_back(table->Create({"t"}, i % 3 == 0, 0s)->id);
  std::vector<int64_t> tokens(kSessions, 0);  // each guarded by the lease of its session
  std::atomic<int> turns{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      testing::Random random(static_cast<uint64_t>(t));
      for (int i = 0; i < kTurns; ++i) {
        const auto which = static_cast<size_t>(random.Int(0, kSessions - 1));
        if (random.Int(0, 19) == 0) {
          const auto listing = table->List("t");
          ASSERT_TRUE(listing.ok()) << listing.status().ToString();
          EXPECT_EQ(listing->sessions.size(), size_t{kSessions});
          continue;
        }
        auto lease = table->Acquire({"t"}, ids[which], {});
        if (!lease.ok()) {
          ASSERT_EQ(lease.status().code(), Code::kAborted) << lease.status().ToString();
          continue;
        }
        ASSERT_EQ(lease->tokens(), tokens[which]);
        if (random.Int(0, 3) == 0) continue;
        const int64_t more = tokens[which] == 0 ? 7 : tokens[which] + 1;
        tokens[which] = more;
        const auto done = table->Commit(*std::move(lease), At(more));
        ASSERT_TRUE(done.ok()) << done.status().ToString();
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(turns, 50);
  table->Flush();
  const auto other = NewTable(1 << 20);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(other->Acquire({"t"}, ids[i], {})->tokens(), tokens[i]);
  }
  EXPECT_GT(table->stats().spills, 0);
}

}  // namespace
}  // namespace polysketch
