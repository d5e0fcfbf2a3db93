// The engine with its thread, a fake model and clients on threads of their own. Also the test that
// runs under TSan.
#include "engine/engine.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/collected.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/reader.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeModel;
using testing::FakeTokenizer;
using testing::kFakeEos;
using testing::kFakeVocab;
using testing::Random;
using testing::Reader;
using namespace std::chrono_literals;

class CountingObserver : public EngineObserver {
 public:
  void OnAdmitted(std::chrono::nanoseconds) override { ++admitted; }
  void OnFirstToken(std::chrono::nanoseconds) override { ++first_tokens; }
  void OnTokenGap(std::chrono::nanoseconds) override { ++gaps; }
  void OnStep(int, int prefill, int decode, std::chrono::nanoseconds) override {
    ++steps;
    prefill_tokens += prefill;
    decode_tokens += decode;
  }
  void OnFinished(const FinishEvent& finish) override {
    ++finished;
    completion_tokens += finish.usage.completion_tokens;
  }
  std::atomic<int64_t> admitted{0}, first_tokens{0}, gaps{0}, steps{0}, prefill_tokens{0},
      decode_tokens{0}, finished{0}, completion_tokens{0};
};

class EngineTest : public ::testing::Test {
 protected:
  static ModelConfig Config() {
    ModelConfig config;
    config.vocab_size = kFakeVocab;
    config.eos_id = kFakeEos;
    return config;
  }
  void Start(EngineOptions options = {}, bool growing = false) {
    options.max_step_tokens = std::max(options.max_step_tokens, 1);
    options.observer = &observer_;
    model_ = std::make_unique<FakeModel>(32, growing);
    auto engine = Engine::Create(model_.get(), Config(), &tokenizer_, options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }
  void TearDown() override {
    engine_.reset();
    model_.reset();  // checks that every state is gone
  }
  static GenerateRequest Greedy(int prompt, std::optional<int> max_tokens) {
    GenerateRequest request;
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(i * 5 % kFakeVocab);
    request.params.sampling.temperature = 0;
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = true;
    return request;
  }
  // stats() is published after a step, events within it: give it a moment.
  void ExpectIdle() {
    for (int i = 0; i < 2000; ++i) {
      const EngineStats stats = engine_->stats();
      if (stats.running + stats.waiting + stats.parked == 0 && stats.state_bytes == 0) return;
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "slots are still taken: " << engine_->stats().running << " running, "
                  << engine_->stats().waiting << " waiting";
  }

  CountingObserver observer_;
  FakeTokenizer tokenizer_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<Engine> engine_;
};

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
  EXPECT_EQ(engine_->Submit(Greedy(5, 5), refused.stream).status().code(),
            Code::kResourceExhausted);
  engine_->Cancel(ids[1]);
  readers[1]->ReadAll();
  // Whoever has read the FinishEvent finds the place free.
  EXPECT_TRUE(engine_->Submit(Greedy(5, 5), refused.stream).ok());
  engine_->Cancel(ids[4]);
  for (auto& reader : readers) reader->ReadAll();
  refused.ReadAll();
  EXPECT_EQ(readers[4]->got.finish->reason, FinishReason::kCancelled);
  EXPECT_EQ(readers[0]->got.finish->reason, FinishReason::kLength);
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
  Start({.max_sequences = 1});
  Reader parked(1), waiting(1);
  GenerateRequest request = Greedy(3, 1000);
  request.info.deadline = Clock::now() + 60ms;
  ASSERT_TRUE(engine_->Submit(request, parked.stream).ok());
  request.info.deadline = Clock::now() + 30ms;
  ASSERT_TRUE(engine_->Submit(request, waiting.stream).ok());
  waiting.ReadAll();
  EXPECT_EQ(waiting.got.finish->reason, FinishReason::kDeadline);
  std::this_thread::sleep_until(request.info.deadline + 100ms);
  parked.ReadAll();
  EXPECT_EQ(parked.got.finish->reason, FinishReason::kDeadline);
  EXPECT_EQ(parked.got.tokens.size(), 1u);
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
  std::vector<int32_t> tokens;
  for (int i = 0; i < 5000; ++i) tokens.push_back(i * 11 % kFakeVocab);
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

TEST_F(EngineTest, DrainEndsWhatIsLeft) {
  Start({.max_sequences = 1});
  Reader parked(1), waiting(1);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), parked.stream).ok());
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), waiting.stream).ok());
  EXPECT_FALSE(engine_->Drain(30ms));
  for (Reader* reader : {&parked, &waiting}) {
    reader->ReadAll();
    EXPECT_EQ(reader->got.finish->status.code(), Code::kUnavailable);
  }
  EXPECT_TRUE(engine_->Drain(0ms));
}

TEST_F(EngineTest, DestructorEndsWhatRuns) {
  Start({.max_sequences = 1});
  Reader parked(1), waiting(1);
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), parked.stream).ok());
  ASSERT_TRUE(engine_->Submit(Greedy(3, 50), waiting.stream).ok());
  engine_.reset();
  for (Reader* reader : {&parked, &waiting}) {
    reader->ReadAll();  // the stream outlives the engine, its callback too
    EXPECT_EQ(reader->got.finish->status.code(), Code::kUnavailable);
  }
}

TEST_F(EngineTest, GrowingStatesLimitMaxTokens) {
  Start({.max_sequences = 4, .state_memory = 4000}, true);  // 400 tokens, 100 in a fair share
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

TEST(EngineCreateTest, RefusesBadOptionsAndModels) {
  FakeModel model(32);
  FakeTokenizer tokenizer;
  ModelConfig config;
  config.vocab_size = kFakeVocab;
  const auto create = [&](const EngineOptions& options) {
    return Engine::Create(&model, config, &tokenizer, options).status();
  };
  EXPECT_EQ(create({}).code(), Code::kOk);
  EXPECT_EQ(create({.max_sequences = 0}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.max_sequences = 32}).code(),
            Code::kInvalidArgument);  // no room for a prompt token
  EXPECT_EQ(create({.max_queue = -1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.state_memory = 99}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.stall_deadline = 0ms}).code(), Code::kInvalidArgument);
  config.vocab_size = 65;
  EXPECT_EQ(create({}).code(), Code::kFailedPrecondition);
  config.vocab_size = kFakeVocab;
  // A forward pass that is not finite.
  model.poisoned_hash = FakeModel::Next(FakeModel::Next(0, 0), 37);
  EXPECT_EQ(create({}).code(), Code::kFailedPrecondition);
}

// --- random mixes ---

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
  const auto id = engine->Submit(request, reader->stream);
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
  EXPECT_LE(model_->live_states, 6);
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                                    FinishReason::kCancelled, FinishReason::kDeadline}) {
    EXPECT_GT(reasons[static_cast<int>(reason)], 0) << FinishReasonName(reason) << " was not tried";
  }
  EXPECT_TRUE(engine_->Drain(1s));
}

}  // namespace
}  // namespace polysketch
