// Memory that is charged as KV caches grow: which sequences run, which one is preempted where
// memory is full, and that what they return does not depend on it.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/score_sequence.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeModel;
using testing::kFakeVocab;
using namespace std::chrono_literals;

class GrowthTest : public ::testing::Test {
 protected:
  struct Client {
    std::shared_ptr<EventStream> stream;
    Collected got;
    int ended = 0;  // the tick
  };

  // Memory of 100 tokens, in tens.
  void Start(SchedulerOptions options) {
    scheduler_.reset();
    clients_.clear();
    ticks_ = 0;
    if (options.slot_memory == 0) options.slot_memory = 1000;
    options.growth_tokens = 10;
    options.stall_deadline = 1h;
    scheduler_ = std::make_unique<Scheduler>(&model_, context_, options);
    model_.on_step = [this](const Batch& batch) {
      size_t needed = 0;
      for (const Segment& segment : batch.segments())
        needed += model_.StateBytes(segment.state->position() + segment.rows);
      EXPECT_LE(needed, scheduler_->states().reserved());
      EXPECT_LE(scheduler_->states().reserved(), scheduler_->states().limit());
    };
  }
  // Different prompts have different outputs.
  GenerateRequest Request(int prompt, const std::string& client = "", int first = 5) const {
    GenerateRequest request;
    request.info.arrival = now_;
    request.info.principal.name = client;
    request.prompt.assign(static_cast<size_t>(prompt), 5);
    request.prompt[0] = first;
    request.params.ignore_eos = true;
    return request;
  }
  size_t Send(const GenerateRequest& request, int max_tokens) {
    clients_.push_back({std::make_shared<EventStream>(100000), {}});
    scheduler_->Add(std::make_unique<GenerateSequence>(context_, clients_.size(), request,
                                                       max_tokens, 1, clients_.back().stream));
    return clients_.size() - 1;
  }
  size_t Score(int tokens, const std::string& client) {
    clients_.push_back({std::make_shared<EventStream>(100000), {}});
    ScoreRequest request{{}, std::make_shared<TokenFeed>(100'000)};
    request.info.arrival = now_;
    request.info.principal.name = client;
    request.feed->Push(std::vector<int32_t>(static_cast<size_t>(tokens), 3));
    request.feed->Close();
    scheduler_->Add(std::make_unique<ScoreSequence>(context_, clients_.size(), request,
                                                    clients_.back().stream));
    return clients_.size() - 1;
  }
  // Ticks of a millisecond until all have ended.
  void RunAll() {
    while (scheduler_->size() > 0 && ticks_ < 100'000) Tick();
    EXPECT_EQ(scheduler_->size(), 0) << "they do not end";
    EXPECT_EQ(scheduler_->states().reserved() + scheduler_->states().preempted(), 0u);
  }
  void Tick() {
    now_ += 1ms;
    ++ticks_;
    scheduler_->Tick();
    for (Client& client : clients_) {
      const bool was_over = client.got.finish.has_value();
      client.got.Drain(client.stream.get());
      if (!was_over && client.got.finish) client.ended = ticks_;
    }
  }
  // What the request returns when it runs alone.
  Collected Alone(const GenerateRequest& request, int max_tokens) {
    Start({.max_sequences = 4, .slot_memory = 1 << 20});
    Send(request, max_tokens);
    RunAll();
    return clients_[0].got;
  }

  Clock::time_point now_ = Clock::now();
  EngineObserver observer_;
  SequenceContext context_{.vocab_size = kFakeVocab,
                           .eos_ids = {},
                           .max_step_tokens = 32,
                           .observer = &observer_,
                           .now = [this] { return now_; }};
  FakeModel model_{32, /*growing=*/true};  // 10 bytes a token
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Client> clients_;
  int ticks_ = 0;
};

TEST_F(GrowthTest, ASequenceIsAdmittedWithWhatIsKnown) {
  Start({.max_sequences = 10});
  Send(Request(30), 40);  // 30 tokens, and ten to grow
  Send(Request(11), 60);  // 20 and ten
  Send(Request(1), 1);    // two in all
  Tick();
  EXPECT_EQ(scheduler_->running(), 3);
  EXPECT_EQ(scheduler_->states().reserved(), 720u);
  EXPECT_EQ(scheduler_->stats().state_bytes, 720u);
  while (!clients_[0].got.finish) Tick();
  EXPECT_EQ(scheduler_->stats().preemptions, 1);
  RunAll();
  EXPECT_EQ(clients_[0].got.tokens.size(), 40u);
  EXPECT_EQ(clients_[1].got.tokens.size(), 60u);
}

// Ten sequences that need all memory each: the first one goes on in every step, and so does the
// next after it.
TEST_F(GrowthTest, AHundredPreemptionsChangeNothing) {
  std::map<int, Collected> alone;
  const int requests = testing::Count(200, 200);
  for (int first = 2; first < 12; ++first) alone[first] = Alone(Request(5, "", first), 90);
  for (const size_t preempted : {0, 350, 1 << 20}) {
    for (const int drafts : {0, 6}) {
      context_.draft_tokens = drafts;
      Start({.max_sequences = 8, .preempted_memory = preempted});
      for (int i = 0; i < requests; ++i) Send(Request(5, "", 2 + i % 10), 90);
      RunAll();
      EXPECT_GE(scheduler_->stats().preemptions, requests / 2);
      EXPECT_EQ(scheduler_->stats().dropped_states > 0, preempted < 1000);
      for (size_t i = 0; i < clients_.size(); ++i) {
        ASSERT_TRUE(clients_[i].got.finish->status.ok());
        EXPECT_EQ(clients_[i].got.tokens, alone[2 + static_cast<int>(i) % 10].tokens) << i;
      }
      EXPECT_LE(clients_[0].ended, 1 + 90);
    }
  }
  context_.draft_tokens = 0;
}

TEST_F(GrowthTest, AClientThatHoldsLessKeepsItsSequence) {
  Start({.max_sequences = 8, .preempted_memory = 0});
  for (int i = 0; i < 6; ++i) Send(Request(5, "crowd"), 60);
  const size_t lonely = Send(Request(5, "lonely"), 30);
  RunAll();
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  EXPECT_LE(clients_[lonely].ended, 2 + 30);
}

TEST_F(GrowthTest, AHigherPriorityGrowsFirst) {
  Start({.max_sequences = 8, .preempted_memory = 0});
  for (const char* client : {"a", "b"}) {
    for (int i = 0; i < 2; ++i) {
      GenerateRequest request = Request(5, client);
      request.info.priority = i;
      Send(request, 60);
    }
  }
  while (!clients_[1].got.finish || !clients_[3].got.finish) Tick();
  EXPECT_FALSE(clients_[0].got.finish || clients_[2].got.finish);
  RunAll();
}

// Forks wait for a state that holds memory which a running sequence needs. It is dropped, and each
// fork processes the prompt.
TEST_F(GrowthTest, AStateThatForksWaitForIsDropped) {
  GenerateRequest choices = Request(30, "choices");
  choices.params.n = choices.params.best_of = 3;
  choices.params.sampling.temperature = 1;
  const Collected alone = Alone(choices, 20);
  ASSERT_EQ(alone.choices.size(), 3u);
  Start({.max_sequences = 2, .preempted_memory = 500});
  const size_t some = Send(choices, 20);
  Tick();
  Tick();  // forks
  GenerateRequest other = Request(5, "other");
  other.info.priority = 1;
  const size_t one = Send(other, 90);
  while (!clients_[one].got.finish) Tick();
  EXPECT_GE(scheduler_->stats().dropped_states, 1);
  EXPECT_GE(scheduler_->stats().dropped_tokens, 2 * 29);
  RunAll();
  EXPECT_EQ(clients_[one].got.tokens.size(), 90u);
  EXPECT_EQ(clients_[some].got.choices, alone.choices);
}

TEST_F(GrowthTest, ScoresTakeTurns) {
  Start({.max_sequences = 4, .preempted_memory = 0});
  for (const char* client : {"a", "a", "b"}) Score(90, client);
  RunAll();
  for (const Client& client : clients_) EXPECT_EQ(client.got.scores.size(), 89u);
}

// The tokens of a long score are gone, so that its state cannot be dropped. What it leaves no room
// for waits.
TEST_F(GrowthTest, ALongScoreEndsNoOther) {
  Start({.max_sequences = 4, .slot_memory = 191'000, .preempted_memory = 1000});
  const size_t score = Score(19'000, "a");
  const size_t other = Send(Request(5, "b"), 1500);
  RunAll();
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  EXPECT_EQ(clients_[score].got.scores.size(), 18'999u);
  EXPECT_EQ(clients_[other].got.tokens.size(), 1500u);
}

TEST_F(GrowthTest, AKeptSequenceGoesOnAfterPreemptions) {
  const auto greedy = [this] {
    GenerateRequest request = Request(5);
    request.params.sampling.temperature = 0;
    request.keep = true;
    return request;
  };
  const Collected alone = Alone(greedy(), 60);
  Start({.max_sequences = 8, .preempted_memory = 300});
  for (int i = 0; i < 6; ++i) Send(greedy(), 30);
  RunAll();
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  std::vector<std::shared_ptr<const Snapshot>> kept;
  for (const Client& client : clients_) kept.push_back(client.got.finish->snapshot);
  Start({.max_sequences = 8, .preempted_memory = 300});
  for (const auto& snapshot : kept) {
    GenerateRequest request = greedy();
    request.prompt.clear();
    request.start = snapshot;
    Send(request, 30);
  }
  RunAll();
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  for (const Client& client : clients_) {
    EXPECT_EQ(client.got.tokens,
              std::vector<int32_t>(alone.tokens.begin() + 30, alone.tokens.end()));
  }
}

}  // namespace
}  // namespace polysketch
