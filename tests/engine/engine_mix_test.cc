// Random mixes of requests from many threads: submits, cancels, stalls, deadlines. What a request
// gets must be what it gets alone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/engine_fixture.h"
#include "tests/engine/testing/reader.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::EngineTest;
using testing::kFakeVocab;
using testing::Random;
using testing::Reader;
using namespace std::chrono_literals;

struct Plan {
  GenerateRequest request;
  std::vector<int32_t> score;  // not empty: a score
};

Plan RandomPlan(Random* random) {
  Plan plan;
  const auto tokens = [&](int64_t count) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    for (int32_t& token : out) token = static_cast<int32_t>(random->Int(0, kFakeVocab - 1));
    return out;
  };
  if (random->Uniform() < 0.25) {
    plan.score = tokens(random->Int(1, 300));
    return plan;
  }
  plan.request.prompt = tokens(random->Uniform() < 0.2 ? random->Int(1, 400) : random->Int(1, 20));
  GenerateParams& params = plan.request.params;
  params.max_tokens = static_cast<int32_t>(random->Int(0, 60));
  params.sampling.seed = static_cast<uint64_t>(random->Int(0, 1000));
  if (random->Uniform() < 0.3) params.sampling.temperature = 0;
  if (random->Uniform() < 0.3) params.sampling.top_k = 10;
  if (random->Uniform() < 0.3) params.sampling.top_p = 0.9f;
  if (random->Uniform() < 0.3) params.sampling.repetition_penalty = 1.2f;
  if (random->Uniform() < 0.3) params.sampling.frequency_penalty = 0.5f;
  if (random->Uniform() < 0.3) params.stop = {"A", "bc", "QZ "};
  if (random->Uniform() < 0.3) params.logprobs = static_cast<int32_t>(random->Int(0, 4));
  params.echo = random->Uniform() < 0.3;
  params.ignore_eos = random->Uniform() < 0.7;
  return plan;
}

Result<RequestId> Submit(Engine* engine, const Plan& plan, Reader* reader,
                         Clock::time_point deadline, uint64_t split_seed) {
  if (plan.score.empty()) {
    GenerateRequest request = plan.request;
    request.info.arrival = Clock::now();
    request.info.deadline = deadline;
    return engine->Submit(std::move(request), reader->stream);
  }
  ScoreRequest request;
  request.info.deadline = deadline;
  request.feed = std::make_shared<TokenFeed>(plan.score.size() + 1);
  Result<RequestId> id = engine->Submit(request, reader->stream);
  Random random(split_seed);
  auto at = plan.score.begin();
  for (const int size : random.Split(static_cast<int>(plan.score.size()))) {
    request.feed->Push({at, at + size});
    at += size;
  }
  request.feed->Close();
  return id;
}

template <typename T>
void ExpectPrefix(const std::vector<T>& part, const std::vector<T>& whole) {
  ASSERT_LE(part.size(), whole.size());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
}

// Each request's output equals that of its run alone; one that was cut short got a prefix of it.
TEST_F(EngineTest, RandomMixesEqualSoloRuns) {
  constexpr int kPlans = 40;
  Random random(11);
  std::vector<Plan> plans;
  std::vector<Collected> solo;
  Start();
  for (int i = 0; i < kPlans; ++i) {
    plans.push_back(RandomPlan(&random));
    Reader reader(100000);
    ASSERT_TRUE(Submit(engine_.get(), plans.back(), &reader, Clock::time_point::max(), 1).ok());
    reader.ReadAll();
    ASSERT_TRUE(reader.got.finish->status.ok()) << reader.got.finish->status.ToString();
    solo.push_back(std::move(reader.got));
  }
  TearDown();

  Start({.max_sequences = 6, .max_queue = 20, .stall_deadline = 40ms});
  model_->step_time = 20us;
  std::atomic<int> accepted{0}, refused{0};
  std::atomic<int> reasons[6] = {};
  const auto client = [&](uint64_t seed) {
    Random mine(seed);
    for (int i = 0; i < testing::Count(30, 600); ++i) {
      const auto which = static_cast<size_t>(mine.Int(0, kPlans - 1));
      Reader reader(static_cast<size_t>(mine.Uniform() < 0.5 ? mine.Int(1, 5) : 1000));
      // Now and then one that has passed already, or will soon.
      const auto deadline =
          i % 8 == 3 ? Clock::now() +
                           std::chrono::microseconds(mine.Uniform() < 0.5 ? 0 : mine.Int(0, 5000))
                     : Clock::time_point::max();
      const auto id = Submit(engine_.get(), plans[which], &reader, deadline,
                             static_cast<uint64_t>(mine.Int(1, 1000)));
      if (!id.ok()) {
        EXPECT_EQ(id.status().code(), Code::kResourceExhausted);
        ++refused;
        std::this_thread::sleep_for(200us);
        continue;
      }
      ++accepted;
      const double fate = mine.Uniform();
      if (fate < 0.15) {
        reader.ReadTokens(static_cast<size_t>(mine.Int(0, 10)));
        engine_->Cancel(*id);
        reader.ReadAll();
      } else if (fate < 0.2) {
        std::this_thread::sleep_for(60ms);  // stalls, unless all of it fits
        reader.ReadAll();
      } else {
        reader.ReadAll(fate < 0.3 ? 100us : 0us);
      }
      const Collected& got = reader.got;
      const Collected& expected = solo[which];
      ++reasons[static_cast<int>(got.finish->reason)];
      if (got.finish->status.ok()) {
        EXPECT_EQ(got.tokens, expected.tokens);
        EXPECT_EQ(got.text, expected.text);
        EXPECT_EQ(got.echoed, expected.echoed);
        EXPECT_EQ(got.logprobs, expected.logprobs);
        EXPECT_EQ(got.scores, expected.scores);
        EXPECT_EQ(got.finish->reason, expected.finish->reason);
        EXPECT_EQ(got.finish->matched_stop, expected.finish->matched_stop);
        EXPECT_EQ(got.finish->usage.completion_tokens, expected.finish->usage.completion_tokens);
        EXPECT_EQ(got.finish->logprob_sum, expected.finish->logprob_sum);
      } else {
        EXPECT_NE(got.finish->reason, FinishReason::kError) << got.finish->status.ToString();
        ExpectPrefix(got.tokens, expected.tokens);
        ExpectPrefix(got.logprobs, expected.logprobs);
        ExpectPrefix(got.scores, expected.scores);
      }
      EXPECT_EQ(got.finish->usage.completion_tokens, static_cast<int64_t>(got.tokens.size()));
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t seed = 100; seed < 112; ++seed) clients.emplace_back(client, seed);
  for (std::thread& thread : clients) thread.join();
  ExpectIdle();
  EXPECT_EQ(observer_.finished, kPlans + accepted);
  EXPECT_LE(model_->live_states, 12);  // running and idle
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                                    FinishReason::kCancelled, FinishReason::kDeadline}) {
    EXPECT_GT(reasons[static_cast<int>(reason)], 0) << FinishReasonName(reason) << " was not tried";
  }
  EXPECT_TRUE(engine_->Drain(1s));
}

}  // namespace
}  // namespace polysketch
