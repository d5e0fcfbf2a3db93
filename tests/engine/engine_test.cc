// The engine with its thread, a fake model and clients on threads of their own.
#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/snapshot/snapshot.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/engine_fixture.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/engine/testing/reader.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::EngineTest;
using testing::FakeModel;
using testing::FakeTokenizer;
using testing::kFakeVocab;
using testing::Random;
using testing::Reader;
using namespace std::chrono_literals;

TEST_F(EngineTest, OneRequest) {
  Start();
  Reader reader(4);
  const auto id = engine_->Submit(Greedy(100, 30), reader.stream);
  ASSERT_TRUE(id.ok());
  reader.ReadAll();
  EXPECT_EQ(reader.got.tokens.size(), 30u);
  EXPECT_EQ(reader.got.finish->reason, FinishReason::kLength);
  ExpectIdle();
  EXPECT_EQ(observer_.admitted, 1);
  EXPECT_EQ(observer_.first_tokens, 1);
  EXPECT_EQ(observer_.gaps, 29);
  EXPECT_EQ(observer_.prefill_tokens, 100);
  EXPECT_EQ(observer_.decode_tokens, 29);
  EXPECT_EQ(observer_.finished, 1);
}

TEST_F(EngineTest, SeedIsReportedAndRepeats) {
  Start();
  GenerateRequest request = Greedy(5, 40);
  request.params.sampling.temperature = 1;
  Reader first(100), second(100), third(100);
  ASSERT_TRUE(engine_->Submit(request, first.stream).ok());
  first.ReadAll();
  ASSERT_TRUE(engine_->Submit(request, second.stream).ok());
  second.ReadAll();
  EXPECT_NE(first.got.finish->seed, second.got.finish->seed);
  EXPECT_NE(first.got.tokens, second.got.tokens);
  request.params.sampling.seed = first.got.finish->seed;
  ASSERT_TRUE(engine_->Submit(request, third.stream).ok());
  third.ReadAll();
  EXPECT_EQ(third.got.tokens, first.got.tokens);
}

TEST_F(EngineTest, RefusesBadRequests) {
  Start({.max_prompt_tokens = 50, .max_new_tokens = 100});
  Reader reader(10);
  const auto code = [&](const GenerateRequest& request) {
    return engine_->Submit(request, reader.stream).status().code();
  };
  EXPECT_EQ(code(Greedy(0, 5)), Code::kInvalidArgument);
  EXPECT_EQ(code(Greedy(51, 5)), Code::kInvalidArgument);
  EXPECT_EQ(code(Greedy(5, 101)), Code::kInvalidArgument);
  GenerateRequest request = Greedy(5, 5);
  request.prompt[3] = -1;
  const auto refused = engine_->Submit(request, reader.stream);
  EXPECT_TRUE(refused.status().message().starts_with("prompt[3]: expected"))
      << refused.status().ToString();
  request = Greedy(5, 5);
  request.params.sampling.top_p = 0;
  EXPECT_EQ(code(request), Code::kInvalidArgument);
  Event event;
  EXPECT_FALSE(reader.stream->TryPop(&event));
  ExpectIdle();
  EXPECT_EQ(observer_.finished, 0);
}

TEST_F(EngineTest, ALengthIsSetForRequestsThatSetNone) {
  Start({.max_new_tokens = 100, .default_max_tokens = 7});
  GenerateRequest request = Greedy(5, 50);
  Reader asked(100), not_asked(100);
  ASSERT_TRUE(engine_->Submit(request, asked.stream).ok());
  asked.ReadAll();
  EXPECT_EQ(asked.got.tokens.size(), 50u);
  request.params.max_tokens.reset();
  ASSERT_TRUE(engine_->Submit(request, not_asked.stream).ok());
  not_asked.ReadAll();
  EXPECT_EQ(not_asked.got.tokens.size(), 7u);
  EXPECT_EQ(not_asked.got.finish->reason, FinishReason::kLength);
}

TEST_F(EngineTest, QueueIsBounded) {
  Start({.max_sequences = 2, .max_queue = 3});
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) {
    readers.push_back(std::make_unique<Reader>(1));  // parks at once
    const auto id = engine_->Submit(Greedy(1000, 10), readers.back()->stream);
    ASSERT_TRUE(id.ok()) << i;
    ids.push_back(*id);
  }
  Reader refused(1);
  const Status full = engine_->Submit(Greedy(5, 5), refused.stream).status();
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_TRUE(full.retry_after().has_value());
  engine_->Cancel(ids[1]);
  readers[1]->ReadAll();
  // A client that has read the FinishEvent can submit again.
  ASSERT_TRUE(engine_->Submit(Greedy(5, 5), refused.stream).ok());
  engine_->Cancel(ids[4]);
  for (auto& reader : readers) reader->ReadAll();
  refused.ReadAll();
  EXPECT_EQ(readers[4]->got.finish->reason, FinishReason::kCancelled);
  EXPECT_EQ(readers[0]->got.finish->reason, FinishReason::kLength);
  ExpectIdle();
}

// Whether clients are parts of a principal, or principals.
class SharedEngineTest : public EngineTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Tenants, SharedEngineTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Parts" : "Principals"; });

TEST_P(SharedEngineTest, AFullQueueHasRoomForAnotherClient) {
  Start({.max_sequences = 2,
         .max_queue = 6,
         .preempted_memory = 1,
         .kv_admission = KvAdmission::kReserve});  // no slot is taken
  std::vector<std::unique_ptr<Reader>> flood, others;
  const auto submit = [this](const char* client, auto* readers) {
    // The first two keep their slots until they are read.
    const size_t capacity = client == std::string("flood") && readers->size() < 2 ? 1 : 100;
    readers->push_back(std::make_unique<Reader>(capacity));
    GenerateRequest request = Greedy(1000, 10);
    (GetParam() ? request.info.principal.part : request.info.principal.name) = client;
    return engine_->Submit(std::move(request), readers->back()->stream);
  };
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(submit("flood", &flood).ok()) << i;
  const Result<RequestId> more = submit("flood", &flood);
  EXPECT_EQ(more.status().code(), Code::kResourceExhausted);
  flood.pop_back();
  for (int i = 0; i < 2000 && engine_->stats().running < 2; ++i) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(submit("other", &others).ok()) << i;
  EXPECT_FALSE(submit("other", &others).ok()) << "both have four places";
  others.pop_back();
  int displaced = 0;
  for (auto& reader : flood) {
    reader->ReadAll();
    const FinishEvent& finish = *reader->got.finish;
    if (finish.status.ok()) continue;
    ++displaced;
    EXPECT_EQ(finish.status.code(), Code::kResourceExhausted) << finish.status.ToString();
    EXPECT_TRUE(finish.status.retry_after().has_value());
    EXPECT_TRUE(reader->got.tokens.empty()) << "a request that has had a slot is not displaced";
  }
  EXPECT_EQ(displaced, 4);
  for (auto& reader : others) {
    reader->ReadAll();
    EXPECT_TRUE(reader->got.finish->status.ok());
  }
  EXPECT_EQ(engine_->stats().given_up, 4);
  ExpectIdle();
}

TEST_F(EngineTest, StatsTellWhetherTheThreadMoves) {
  Start({.max_sequences = 1});
  ExpectIdle();
  model_->step_time = 300ms;
  Reader reader(10);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 1), reader.stream).ok());
  std::this_thread::sleep_for(100ms);
  const EngineStats in_step = engine_->stats();
  EXPECT_TRUE(in_step.working);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(engine_->stats().turns, in_step.turns);
  reader.ReadAll();
  for (int i = 0; i < 2000 && engine_->stats().working; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(engine_->stats().working);
  EXPECT_GT(engine_->stats().turns, in_step.turns);
}

// A long prompt is refused only while others wait: alone it would never get in.
TEST_F(EngineTest, TokensThatWaitAreBounded) {
  Start({.max_sequences = 1, .max_queue_tokens = 100, .preempted_memory = 1});
  const auto wait_for = [this](auto reached) {
    for (int i = 0; i < 2000 && !reached(engine_->stats()); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(reached(engine_->stats()));
  };
  Reader running(1), waiting(10), refused(10), fits(10), after(10);  // 1: keeps its slot, unread
  ASSERT_TRUE(engine_->Submit(Greedy(1000, 10), running.stream).ok()) << "nothing else waits";
  wait_for(
      [](const EngineStats& stats) { return stats.running == 1 && stats.waiting_tokens == 0; });
  const auto id = engine_->Submit(Greedy(60, 1), waiting.stream);
  ASSERT_TRUE(id.ok());
  const Status full = engine_->Submit(Greedy(41, 1), refused.stream).status();
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_NE(full.message().find("60 tokens of prompts wait, 100 may"), std::string::npos)
      << full.ToString();
  EXPECT_TRUE(full.retry_after().has_value());
  EXPECT_TRUE(engine_->Submit(Greedy(40, 1), fits.stream).ok());
  engine_->Cancel(*id);
  waiting.ReadAll();
  wait_for([](const EngineStats& stats) { return stats.waiting_tokens == 40; });
  EXPECT_TRUE(engine_->Submit(Greedy(60, 1), after.stream).ok());
  running.ReadAll();
  for (Reader* reader : {&fits, &after}) {
    reader->ReadAll();
    EXPECT_EQ(reader->got.finish->reason, FinishReason::kLength);
  }
  ExpectIdle();
}

TEST_F(EngineTest, CancelFreesTheSlotWithinAStep) {
  Start({.max_sequences = 1});
  model_->step_time = 2ms;
  Reader endless(1000000), next(10);
  const auto id = engine_->Submit(Greedy(3, std::nullopt), endless.stream);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 1), next.stream).ok());
  endless.ReadTokens(3);
  const int64_t steps = model_->steps;
  engine_->Cancel(*id);
  endless.ReadAll();
  EXPECT_EQ(endless.got.finish->reason, FinishReason::kCancelled);
  EXPECT_EQ(endless.got.finish->status.code(), Code::kCancelled);
  EXPECT_LE(
      model_->steps,
      steps + 3);  // one under way, one that may begin before the call, and the next request's
  next.ReadAll();
  EXPECT_EQ(next.got.tokens.size(), 1u);
  engine_->Cancel(*id);
  engine_->Cancel(999);
  ExpectIdle();
}

TEST_F(EngineTest, DeadlineWakesASleepingEngine) {
  Start({.max_sequences = 1, .preempted_memory = 1});  // no room to park: the second waits
  Reader idle(1), waiting(1);
  GenerateRequest request = Greedy(3, 1000);
  request.info.deadline = Clock::now() + 60ms;
  ASSERT_TRUE(engine_->Submit(request, idle.stream).ok());
  request.info.deadline = Clock::now() + 30ms;
  ASSERT_TRUE(engine_->Submit(request, waiting.stream).ok());
  waiting.ReadAll();
  EXPECT_EQ(waiting.got.finish->reason, FinishReason::kDeadline);
  EXPECT_LT(Clock::now(), request.info.deadline + 10s) << "woken by the stall deadline of 30 s";
  std::this_thread::sleep_until(request.info.deadline + 100ms);
  idle.ReadAll();
  EXPECT_EQ(idle.got.finish->reason, FinishReason::kDeadline);
  EXPECT_EQ(idle.got.tokens.size(), 1u);
  ExpectIdle();
}

TEST_F(EngineTest, StalledReaderIsEnded) {
  Start({.stall_deadline = 50ms});
  Reader reader(3);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 1000), reader.stream).ok());
  for (int i = 0; i < 2000 && engine_->stats().steps < 3; ++i) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < 2000 && engine_->stats().running > 0; ++i) std::this_thread::sleep_for(1ms);
  reader.ReadAll();
  EXPECT_EQ(reader.got.finish->reason, FinishReason::kStalled);
  EXPECT_EQ(reader.got.tokens.size(), 3u);
}

TEST_F(EngineTest, ScoreStreamsBothWays) {
  Start();
  Reader reader(2);
  auto feed = std::make_shared<TokenFeed>(50);
  std::mutex mutex;
  std::condition_variable room;
  int rooms = 0;
  feed->SetOnRoom([&] {
    std::lock_guard lock(mutex);
    ++rooms;
    room.notify_one();
  });
  ASSERT_TRUE(engine_->Submit(ScoreRequest{{}, feed}, reader.stream).ok());
  std::vector<int32_t> tokens(5000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 11 % kFakeVocab);
  std::thread writer([&] {
    Random random(1);
    int waits = 0;
    for (size_t at = 0; at < tokens.size();) {
      const size_t size =
          std::min<size_t>(tokens.size() - at, static_cast<size_t>(random.Int(1, 60)));
      const auto begin = tokens.begin() + static_cast<ptrdiff_t>(at);
      at += size;
      if (feed->Push({begin, begin + static_cast<ptrdiff_t>(size)})) continue;
      ++waits;
      std::unique_lock lock(mutex);
      ASSERT_TRUE(room.wait_for(lock, 20s, [&] { return rooms >= waits; }));
    }
    feed->Close();
  });
  reader.ReadAll();
  writer.join();
  EXPECT_EQ(reader.got.finish->reason, FinishReason::kStop);
  EXPECT_EQ(reader.got.finish->usage.prompt_tokens, 5000);
  ASSERT_EQ(reader.got.scores.size(), 4999u);
  // All at once: the same bits.
  Reader whole(2);
  feed = std::make_shared<TokenFeed>(100000);
  feed->Push(tokens);
  feed->Close();
  ASSERT_TRUE(engine_->Submit(ScoreRequest{{}, feed}, whole.stream).ok());
  whole.ReadAll();
  EXPECT_EQ(whole.got.scores, reader.got.scores);
  EXPECT_EQ(whole.got.finish->logprob_sum, reader.got.finish->logprob_sum);
  ExpectIdle();
}

TEST_F(EngineTest, DrainLetsRunningOnesFinish) {
  Start({.max_sequences = 1});
  Reader running(100000), waiting(100000), late(10);
  ASSERT_TRUE(engine_->Submit(Greedy(100, 50), running.stream).ok());
  ASSERT_TRUE(engine_->Submit(Greedy(100, 50), waiting.stream).ok());
  EXPECT_TRUE(engine_->Drain(20s));
  EXPECT_EQ(engine_->Submit(Greedy(3, 3), late.stream).status().code(), Code::kUnavailable);
  for (Reader* reader : {&running, &waiting}) {
    while (reader->ReadOne()) {
    }
    ASSERT_TRUE(reader->got.finish.has_value());
    EXPECT_EQ(reader->got.tokens.size(), 50u);
  }
}

// While a step runs, the engine thread knows nothing of the requests that are submitted.
TEST_F(EngineTest, DrainWaitsForWhatWasSubmittedDuringAStep) {
  Start({.max_sequences = 4, .max_queue = 1 << 20});
  model_->step_time = 50ms;
  std::vector<std::unique_ptr<Reader>> during;
  std::promise<void> begun;
  const auto running = std::make_shared<EventStream>(100);
  // Called within the last step of the only request that the engine thread knows.
  running->SetOnReady([&, once = true]() mutable {
    if (!std::exchange(once, false)) return;
    while (true) {
      auto reader = std::make_unique<Reader>(100);
      if (!engine_->Submit(Greedy(3, 1), reader->stream).ok()) return;  // the drain has begun
      during.push_back(std::move(reader));
      if (during.size() == 1) begun.set_value();
      std::this_thread::sleep_for(1ms);
    }
  });
  ASSERT_TRUE(engine_->Submit(Greedy(3, 1), running).ok());
  begun.get_future().wait();
  EXPECT_TRUE(engine_->Drain(60s));
  for (const auto& reader : during) {
    while (reader->ReadOne()) {
    }
    EXPECT_TRUE(reader->got.finish.has_value());
  }
}

TEST_F(EngineTest, DrainEndsWhatIsLeft) {
  Start({.max_sequences = 1});
  Reader idle(1), waiting(1);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), idle.stream).ok());
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), waiting.stream).ok());
  EXPECT_FALSE(engine_->Drain(30ms));
  for (Reader* reader : {&idle, &waiting}) {
    reader->ReadAll();
    EXPECT_EQ(reader->got.finish->status.code(), Code::kUnavailable);
  }
  EXPECT_TRUE(engine_->Drain(0ms));
}

TEST_F(EngineTest, DestructorEndsWhatRuns) {
  Start({.max_sequences = 1});
  Reader idle(1), waiting(1);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), idle.stream).ok());
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), waiting.stream).ok());
  engine_.reset();
  for (Reader* reader : {&idle, &waiting}) {
    reader->ReadAll();  // the stream outlives the engine, its callback too
    EXPECT_EQ(reader->got.finish->status.code(), Code::kUnavailable);
  }
}

// A request that no memory holds is refused with the bytes that it needs, and does not wait for
// ever.
TEST_F(EngineTest, WhatExceedsAllMemoryIsRefused) {
  Start({.max_sequences = 4, .slot_memory = 4000}, true);  // 400 tokens
  Reader kept(100000), refused(1);
  GenerateRequest first = Greedy(300, 5);
  first.keep = true;
  ASSERT_TRUE(engine_->Submit(first, kept.stream).ok());
  kept.ReadAll();
  const Status longer = engine_->Submit(Greedy(300, 101), refused.stream).status();
  EXPECT_EQ(longer.code(), Code::kInvalidArgument);
  EXPECT_EQ(longer.message(),
            "max_tokens: expected prompt and output together at most 400 (memory of a state), "
            "found 300 + 101, which need 4010 bytes of 4000");

  // Another replica has less memory than the one that the session is from.
  engine_.reset();
  Start({.max_sequences = 4, .slot_memory = 3000}, true);
  ScoreRequest score{{}, std::make_shared<TokenFeed>(10)};
  score.start = kept.got.finish->snapshot;
  score.feed->Close();
  const Status large = engine_->Submit(score, refused.stream).status();
  EXPECT_EQ(large.code(), Code::kInvalidArgument);
  EXPECT_EQ(large.message(),
            "state: expected at most 300 tokens (memory of a state), found 305, which need 3050 "
            "bytes of 3000");
}

TEST_F(EngineTest, GrowingStatesLimitMaxTokens) {
  Start({.max_sequences = 4, .slot_memory = 4000}, true);  // 400 tokens, 100 in a fair share
  Reader reader(10);
  const auto refused = engine_->Submit(Greedy(100, 301), reader.stream);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(refused.status().message().starts_with("max_tokens")) << refused.status().ToString();
  const auto generated = [&](int prompt, std::optional<int> max_tokens) {
    Reader unlimited(100000);
    EXPECT_TRUE(engine_->Submit(Greedy(prompt, max_tokens), unlimited.stream).ok());
    unlimited.ReadAll();
    EXPECT_EQ(unlimited.got.finish->reason, FinishReason::kLength);
    return unlimited.got.tokens.size();
  };
  EXPECT_EQ(generated(100, 300), 300u);
  EXPECT_EQ(generated(30, std::nullopt), 70u);
  EXPECT_EQ(generated(150, std::nullopt), 250u);
}

// Sequences wait, are preempted or end at the length that fits: none ends with an error half way.
TEST_F(EngineTest, KvCachesThatFillSlotMemoryLoseNoText) {
  EngineOptions options{
      .max_sequences = 4, .slot_memory = 4000, .preempted_memory = 1500, .draft_tokens = 4};
  Start(options, true);
  Random random(3);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 24; ++i) {
    GenerateRequest request = Greedy(static_cast<int>(random.Int(1, 250)), std::nullopt);
    if (i % 3 == 0) request.params.max_tokens = static_cast<int32_t>(random.Int(1, 140));
    request.params.ignore_eos = i % 2 == 0;
    request.info.priority = static_cast<int>(random.Int(0, 2));
    request.info.principal.name = i % 4 == 0 ? "one" : "other";
    requests.push_back(std::move(request));
  }
  std::vector<std::unique_ptr<Reader>> readers;
  for (const GenerateRequest& request : requests) {
    readers.push_back(std::make_unique<Reader>(2));  // often full: its sequence is idle then
    ASSERT_TRUE(engine_->Submit(request, readers.back()->stream).ok());
  }
  const auto unfinished = [](const auto& reader) { return !reader->got.finish.has_value(); };
  while (std::any_of(readers.begin(), readers.end(), unfinished)) {
    for (auto& reader : readers) {
      if (unfinished(reader)) reader->ReadOne();
    }
    std::this_thread::sleep_for(100us);
  }
  EXPECT_GT(engine_->stats().preemptions, 0);
  ExpectIdle();
  for (size_t i = 0; i < requests.size(); ++i) {
    const FinishEvent& finish = *readers[i]->got.finish;
    EXPECT_TRUE(finish.reason == FinishReason::kLength || finish.reason == FinishReason::kStop);
    Reader alone(100000);
    ASSERT_TRUE(engine_->Submit(requests[i], alone.stream).ok());
    alone.ReadAll();
    EXPECT_EQ(readers[i]->got.tokens, alone.got.tokens) << i;
    EXPECT_EQ(readers[i]->got.text, alone.got.text) << i;
  }
}

class ContextLimit : public EngineTest {
 protected:
  static constexpr int64_t kLimit = 50;
  void SetUp() override {
    Start({.max_sequences = 4, .context_limit = kLimit, .draft_tokens = 4}, true);
    model_->max_positions = kLimit;
  }
  Collected Run(GenerateRequest request) {
    Reader reader(100000);
    const auto id = engine_->Submit(std::move(request), reader.stream);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    if (id.ok()) reader.ReadAll();
    return reader.got;
  }
  void ExpectTooLong(GenerateRequest request, const std::string& found) {
    Reader reader(10);
    const Status status = engine_->Submit(std::move(request), reader.stream).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.reason(), "CONTEXT_LENGTH_EXCEEDED");
    EXPECT_EQ(status.message(),
              "prompt: this model's maximum context length is 50 tokens: expected prompt and "
              "output to be at most that together, found " +
                  found);
  }
};

TEST_F(ContextLimit, PromptAndOutputTogether) {
  ExpectTooLong(Greedy(30, 21), "30 + 21");
  ExpectTooLong(Greedy(50, std::nullopt), "50 + 1");
  ExpectTooLong(Greedy(51, 0), "51 + 0");
  EXPECT_EQ(Run(Greedy(30, 20)).tokens.size(), 20u);
  EXPECT_EQ(Run(Greedy(50, 0)).finish->reason, FinishReason::kLength);
  for (const int prompt : {1, 30, 49}) {
    const Collected got = Run(Greedy(prompt, std::nullopt));
    EXPECT_EQ(std::ssize(got.tokens), kLimit - prompt);
    EXPECT_EQ(got.finish->reason, FinishReason::kLength);
  }
  GenerateRequest several = Greedy(30, std::nullopt);
  several.params.n = several.params.best_of = 3;
  several.params.sampling.temperature = 1;
  EXPECT_EQ(Run(several).finish->usage.completion_tokens, 3 * 20);
}

TEST_F(ContextLimit, ATurnCountsWhatPrecedesIt) {
  GenerateRequest first = Greedy(20, 10);
  first.keep = true;
  const std::shared_ptr<const Snapshot> start = Run(first).finish->snapshot;
  ASSERT_EQ(start->tokens(), 30);
  GenerateRequest turn = Greedy(15, 6);
  turn.start = start;
  ExpectTooLong(turn, "45 + 6");
  turn.params.max_tokens = std::nullopt;
  turn.keep = true;
  const Collected got = Run(turn);
  EXPECT_EQ(got.tokens.size(), 5u);
  GenerateRequest full = Greedy(0, std::nullopt);
  full.start = got.finish->snapshot;
  ExpectTooLong(full, "50 + 1");
}

TEST_F(ContextLimit, AMigratedCompletionHasTheRestOfIt) {
  Reader reader(4);
  ASSERT_TRUE(engine_->Submit(Greedy(10, 40), reader.stream).ok());
  reader.ReadTokens(7);
  engine_->MigrateAll();
  reader.ReadAll();
  ASSERT_EQ(reader.got.finish->reason, FinishReason::kMigrated);
  GenerateRequest rest;
  rest.start = reader.got.finish->snapshot;
  EXPECT_EQ(reader.got.tokens.size() + Run(rest).tokens.size(), 40u);
}

TEST_F(ContextLimit, Score) {
  for (const int64_t tokens : {kLimit, kLimit + 1}) {
    Reader reader(100);
    auto feed = std::make_shared<TokenFeed>(1000);
    feed->Push(std::vector<int32_t>(static_cast<size_t>(tokens), 3));
    feed->Close();
    ASSERT_TRUE(engine_->Submit(ScoreRequest{.info = {}, .feed = feed}, reader.stream).ok());
    reader.ReadAll();
    EXPECT_EQ(reader.got.finish->status.reason(),
              tokens == kLimit ? "OK" : "CONTEXT_LENGTH_EXCEEDED");
  }
}

TEST(EngineCreateTest, RefusesBadOptionsAndModels) {
  FakeModel model(32);
  FakeTokenizer tokenizer;
  const auto create = [&](const EngineOptions& options) {
    return Engine::Create(&model, &tokenizer, options).status();
  };
  EXPECT_EQ(create({}).code(), Code::kOk);
  EXPECT_EQ(create({.max_sequences = 0}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.max_sequences = 32}).code(),
            Code::kInvalidArgument);  // no room for a prompt token
  EXPECT_EQ(create({.max_queue = -1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.slot_memory = 99}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.stall_deadline = 0ms}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.eos_ids = {kFakeVocab}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.context_limit = -1}).code(), Code::kInvalidArgument);
  // A forward pass that is not finite.
  model.poisoned_hash = FakeModel::Next(FakeModel::Next(0, 0), 37);
  EXPECT_EQ(create({}).code(), Code::kFailedPrecondition);
}

// Nothing that a failed device computed goes out; what runs and what waits ends; nothing new
// begins.
TEST_F(EngineTest, AFailedDeviceEndsEverything) {
  std::atomic<int> reported{0};
  Start({.max_sequences = 2, .on_device_failure = [&](const Status& status) {
           EXPECT_EQ(status.code(), Code::kInternal);
           ++reported;
         }});
  model_->fail_after = model_->steps + 10;
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::make_unique<Reader>(1000));
    const auto id = engine_->Submit(Greedy(5, 100), readers.back()->stream);
    if (id.ok()) continue;
    // On a busy machine the device has failed by now; the first request was there before.
    ASSERT_GT(i, 0);
    EXPECT_EQ(id.status().code(), Code::kUnavailable);
    readers.pop_back();
  }
  for (const auto& reader : readers) {
    reader->ReadAll();
    EXPECT_EQ(reader->got.finish->reason, FinishReason::kError);
    EXPECT_EQ(reader->got.finish->status.code(), Code::kInternal);
    EXPECT_LE(reader->got.tokens.size(), 10u);
  }
  Reader late(10);
  while (reported == 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Submit(Greedy(5, 5), late.stream).status().code(), Code::kUnavailable);
  ExpectIdle();
  EXPECT_EQ(reported, 1);
}

}  // namespace
}  // namespace polysketch
