#include "engine/request/request.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/request/chunk_times.h"
#include "gtest/gtest.h"

namespace polysketch {
namespace {

Event Token(int32_t token) {
  TokenEvent event;
  event.token = token;
  return event;
}

TEST(EventStreamTest, ReadyOnlyWhenItWasEmpty) {
  EventStream stream(10);
  int ready = 0;
  stream.SetOnReady([&] { ++ready; });
  Event event;
  EXPECT_FALSE(stream.TryPop(&event));
  stream.Push(Token(1));
  stream.Push(Token(2));
  EXPECT_EQ(ready, 1);
  EXPECT_TRUE(stream.TryPop(&event));
  EXPECT_EQ(std::get<TokenEvent>(event).token, 1);
  stream.Push(Token(3));
  EXPECT_EQ(ready, 1);
  EXPECT_TRUE(stream.TryPop(&event));
  EXPECT_TRUE(stream.TryPop(&event));
  EXPECT_FALSE(stream.TryPop(&event));
  stream.Push(Token(4));
  EXPECT_EQ(ready, 2);
}

TEST(EventStreamTest, FullAndDrained) {
  EventStream stream(2);
  int drained = 0;
  stream.SetOnDrained([&] { ++drained; });
  Event event;
  stream.Push(Token(1));
  EXPECT_FALSE(stream.Full());
  EXPECT_FALSE(stream.full_since().has_value());
  stream.Push(Token(2));
  EXPECT_TRUE(stream.Full());
  ASSERT_TRUE(stream.full_since().has_value());
  const auto since = *stream.full_since();
  stream.Push(FinishEvent());  // always fits
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stream.TryPop(&event);
  EXPECT_TRUE(stream.Full());
  EXPECT_EQ(drained, 0);
  EXPECT_GT(*stream.full_since(), since);  // the reader is alive
  stream.TryPop(&event);
  EXPECT_FALSE(stream.Full());
  EXPECT_FALSE(stream.full_since().has_value());
  EXPECT_EQ(drained, 1);
  stream.TryPop(&event);
  EXPECT_TRUE(std::holds_alternative<FinishEvent>(event));
  EXPECT_EQ(drained, 1);
}

TEST(TokenFeedTest, RoomAndData) {
  TokenFeed feed(4);
  int room = 0, data = 0;
  feed.SetOnRoom([&] { ++room; });
  EXPECT_TRUE(feed.Push({1, 2}));
  feed.SetOnData([&] { ++data; });
  EXPECT_FALSE(feed.Push({3, 4, 5}));
  EXPECT_EQ(data, 1);
  EXPECT_EQ(feed.available(), 5u);
  std::vector<int32_t> out;
  EXPECT_EQ(feed.Pull(1, &out), 1u);
  EXPECT_EQ(room, 0);  // still four
  EXPECT_EQ(feed.Pull(1, &out), 1u);
  EXPECT_EQ(room, 1);
  EXPECT_EQ(feed.Pull(10, &out), 3u);
  EXPECT_EQ(room, 1);
  EXPECT_EQ(out, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_FALSE(feed.Exhausted());
  EXPECT_FALSE(feed.closed());
  feed.Close();
  EXPECT_EQ(data, 2);
  EXPECT_TRUE(feed.Exhausted());
}

// Callbacks run without the lock of the feed.
TEST(TokenFeedTest, CallbacksMayUseTheFeed) {
  TokenFeed feed(2);
  size_t at_data = 0, at_room = 0;
  feed.SetOnData([&] { at_data = feed.available(); });
  feed.SetOnRoom([&] { at_room = feed.available(); });
  EXPECT_FALSE(feed.Push({1, 2}));
  EXPECT_EQ(at_data, 2u);
  std::vector<int32_t> out;
  feed.Pull(1, &out);
  EXPECT_EQ(at_room, 1u);
}

TEST(TokenFeedTest, ProducerAndConsumerThreads) {
  constexpr int32_t kTokens = 5000;
  TokenFeed feed(16);
  std::mutex mutex;
  std::condition_variable changed;
  int rooms = 0;
  int data = 0;
  const auto count = [&](int* counter) {
    std::lock_guard lock(mutex);
    ++*counter;
    changed.notify_all();
  };
  // Hangs when a call is lost.
  const auto wait_for = [&](const int* counter, int value) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(
        changed.wait_for(lock, std::chrono::seconds(20), [&] { return *counter >= value; }));
  };
  feed.SetOnRoom([&] { count(&rooms); });
  feed.SetOnData([&] { count(&data); });
  std::thread producer([&] {
    int waits = 0;
    for (int32_t i = 0; i < kTokens; i += 5) {
      if (!feed.Push({i, i + 1, i + 2, i + 3, i + 4})) wait_for(&rooms, ++waits);
    }
    feed.Close();
  });
  std::vector<int32_t> out;
  while (!feed.Exhausted()) {
    std::unique_lock lock(mutex);
    const int seen = data;
    lock.unlock();
    if (feed.Pull(7, &out) == 0 && !feed.Exhausted()) wait_for(&data, seen + 1);
  }
  producer.join();
  ASSERT_EQ(out.size(), static_cast<size_t>(kTokens));
  for (int32_t i = 0; i < kTokens; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], i);
}

TEST(FinishReasonTest, Names) {
  EXPECT_EQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_EQ(FinishReasonName(FinishReason::kStalled), "stalled");
}

TEST(ChunkTimesTest, MergedTimesCoverAllChunks) {
  const Clock::time_point begin = Clock::now();
  const auto at = [&](int64_t i) { return begin + std::chrono::milliseconds(i); };
  for (const int64_t count : {1, 31, 32, 33, 64, 65, 66, 1000}) {
    ChunkTimes chunks;
    for (int64_t i = 0; i < count; ++i) chunks.Add(at(2 * i), at(2 * i + 1), i);
    const std::vector<ChunkTime>& times = chunks.times();
    EXPECT_LE(times.size(), ChunkTimes::kMaxTimes);
    EXPECT_GE(times.size(), std::min<size_t>(static_cast<size_t>(count), 16));
    int64_t next = 0;
    int64_t tokens = 0;
    for (const ChunkTime& time : times) {
      EXPECT_EQ(time.start, at(2 * next));
      next += time.chunks;
      EXPECT_EQ(time.end, at(2 * next - 1));
      tokens += time.tokens;
      if (&time != &times.back()) {
        EXPECT_EQ(time.chunks, times.front().chunks);
      }
    }
    EXPECT_EQ(next, count);
    EXPECT_EQ(tokens, count * (count - 1) / 2);
  }
}

}  // namespace
}  // namespace polysketch
