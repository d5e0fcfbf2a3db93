// The scheduler driven by hand, with a clock of the test's own: admission, idle sequences,
// deadlines, cancellation, memory.
#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/prefix_cache/prefix_cache.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/score_sequence.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeModel;
using testing::FakeState;
using testing::kFakeVocab;
using namespace std::chrono_literals;

class SchedulerTest : public ::testing::Test {
 protected:
  struct Client {
    RequestId id = 0;
    std::shared_ptr<EventStream> stream;
    std::shared_ptr<TokenFeed> feed;
    Collected got;
    void Read() { got.Drain(stream.get()); }
    bool done() const { return got.finish.has_value(); }
  };

  void Start(SchedulerOptions options, bool growing = false) {
    options.stall_deadline = 30s;
    options.on_ending = [this](const Sequence&) { ++endings_; };
    model_ = std::make_unique<FakeModel>(32, growing);
    scheduler_ = std::make_unique<Scheduler>(model_.get(), context_, options);
  }
  void TearDown() override { scheduler_.reset(); }

  Client Generate(int prompt, int max_tokens, size_t capacity = 100000,
                  Clock::time_point deadline = Clock::time_point::max()) {
    GenerateRequest request = Request(prompt);
    request.info.deadline = deadline;
    return Generate(request, max_tokens, capacity);
  }
  GenerateRequest Request(int prompt) const {
    GenerateRequest request;
    request.info.arrival = now_;
    request.prompt.assign(static_cast<size_t>(prompt), 5);
    request.params.sampling.temperature = 0;
    request.params.ignore_eos = true;
    return request;
  }
  Client Generate(const GenerateRequest& request, int max_tokens, size_t capacity = 100000) {
    Client client{++next_id_, std::make_shared<EventStream>(capacity), nullptr, {}};
    scheduler_->Add(std::make_unique<GenerateSequence>(context_, client.id, request, max_tokens, 1,
                                                       client.stream));
    return client;
  }
  // A request that follows a prompt of `prompt` tokens and one generated token.
  GenerateRequest Following(int prompt) {
    GenerateRequest first = Request(prompt);
    first.keep = true;
    Client client = Generate(first, 1);
    for (int i = 0; i < 100 && !client.done(); ++i) {
      scheduler_->Tick();
      client.Read();
    }
    GenerateRequest next = Request(2);
    next.start = client.got.finish->snapshot;
    return next;
  }
  // Ticks until the clients are done; no tick takes more than `most`. Returns the number of ticks.
  int TickUntilDone(const std::vector<Client*>& clients, std::chrono::nanoseconds most) {
    const auto done = [&] {
      for (Client* client : clients) client->Read();
      return std::ranges::all_of(clients, [](const Client* client) { return client->done(); });
    };
    int ticks = 0;
    for (; !done() && ticks < 1000; ++ticks) {
      const Clock::time_point before = now_;
      scheduler_->Tick();
      EXPECT_LE(now_ - before, most);
    }
    return ticks;
  }
  Client Score() {
    Client client{
        ++next_id_, std::make_shared<EventStream>(100000), std::make_shared<TokenFeed>(1000), {}};
    ScoreRequest request{{}, client.feed};
    request.info.arrival = now_;
    scheduler_->Add(std::make_unique<ScoreSequence>(context_, client.id, request, client.stream));
    return client;
  }

  // Streams keep real time; the test's clock only runs ahead of it.
  Clock::time_point now_ = Clock::now();
  EngineObserver observer_;
  SequenceContext context_{.vocab_size = kFakeVocab,
                           .eos_ids = {},
                           .max_step_tokens = 32,
                           .observer = &observer_,
                           .now = [this] { return now_; }};
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<Scheduler> scheduler_;
  RequestId next_id_ = 0;
  int endings_ = 0;
};

TEST_F(SchedulerTest, SlotsBoundWhatRuns) {
  Start({.max_sequences = 2, .slot_memory = 1000});
  Client a = Generate(3, 10), b = Generate(3, 20), c = Generate(3, 5);
  ASSERT_TRUE(scheduler_->Tick());
  EXPECT_EQ(scheduler_->running(), 2);
  EXPECT_EQ(scheduler_->stats().waiting, 1);
  EXPECT_EQ(scheduler_->stats().state_bytes, 200u);
  int steps = 0;
  for (; scheduler_->Tick(); ++steps) {
    EXPECT_LE(model_->live_states, 2);
  }
  for (Client* client : {&a, &b, &c}) {
    client->Read();
    EXPECT_TRUE(client->done());
    EXPECT_EQ(client->got.finish->reason, FinishReason::kLength);
  }
  EXPECT_EQ(scheduler_->running(), 0);
  EXPECT_EQ(endings_, 3);
  // a: 10 steps; c takes its slot at once: its 5 end before b's 20.
  EXPECT_EQ(model_->steps, 20);
}

TEST_F(SchedulerTest, MemoryBoundsWhatRuns) {
  Start({.max_sequences = 10, .slot_memory = 250});  // states of 100
  Client a = Generate(3, 2), b = Generate(3, 2), c = Generate(3, 2);
  scheduler_->Tick();
  EXPECT_EQ(scheduler_->running(), 2);
  EXPECT_EQ(scheduler_->states().reserved(), 200u);
  while (scheduler_->Tick()) {
  }
  c.Read();
  EXPECT_TRUE(c.done());
  EXPECT_EQ(scheduler_->states().reserved(), 0u);
}

TEST_F(SchedulerTest, ReservedMemoryIsThatOfTheLongestState) {
  Start({.max_sequences = 10, .slot_memory = 1000, .kv_admission = KvAdmission::kReserve},
        true);  // 10 bytes a token
  Client a = Generate(30, 40), b = Generate(10, 20), c = Generate(1, 1);
  scheduler_->Tick();
  EXPECT_EQ(scheduler_->running(), 2);  // 700 + 300; c waits though it is small
  EXPECT_EQ(scheduler_->states().reserved(), 1000u);
  while (scheduler_->Tick()) {
  }
  for (Client* client : {&a, &b, &c}) {
    client->Read();
    EXPECT_EQ(client->got.finish->reason, FinishReason::kLength);
  }
  EXPECT_EQ(scheduler_->states().reserved(), 0u);
  EXPECT_EQ(model_->live_states, 0);
}

TEST_F(SchedulerTest, GrowingScoreEndsWhenMemoryDoes) {
  Start({.max_sequences = 10, .slot_memory = 1000}, true);
  Client score = Score();
  score.feed->Push(std::vector<int32_t>(101, 3));
  score.feed->Close();
  while (scheduler_->Tick()) {
  }
  score.Read();
  EXPECT_EQ(score.got.finish->reason, FinishReason::kStop);  // the last token needs no room
  EXPECT_EQ(score.got.scores.size(), 100u);
  Client longer = Score();
  longer.feed->Push(std::vector<int32_t>(102, 3));
  longer.feed->Close();
  while (scheduler_->Tick()) {
  }
  longer.Read();
  EXPECT_EQ(longer.got.finish->status.code(), Code::kResourceExhausted);
  EXPECT_EQ(scheduler_->states().reserved(), 0u);
}

TEST_F(SchedulerTest, FullStreamParksAndCostsNothing) {
  Start({.max_sequences = 2, .slot_memory = 1000});
  Client slow = Generate(3, 50, 4), fast = Generate(3, 50);
  while (scheduler_->Tick()) {
  }
  fast.Read();
  EXPECT_TRUE(fast.done());
  EXPECT_EQ(scheduler_->stats().idle, 1);
  EXPECT_EQ(scheduler_->running(), 1);
  EXPECT_FALSE(scheduler_->Tick());
  while (!slow.done()) {
    slow.Read();
    while (scheduler_->Tick()) {
    }
    slow.Read();
  }
  EXPECT_EQ(slow.got.tokens, fast.got.tokens);
}

TEST_F(SchedulerTest, StallDeadlineEndsAReaderThatIsGone) {
  Start({.max_sequences = 1, .slot_memory = 1000});
  Client slow = Generate(3, 50, 4), next = Generate(3, 5);
  while (scheduler_->Tick()) {
  }
  const Clock::time_point deadline = scheduler_->NextDeadline();
  EXPECT_GT(deadline, Clock::now() + 25s);
  EXPECT_LE(deadline, Clock::now() + 30s);
  now_ = deadline - 1ms;
  EXPECT_FALSE(scheduler_->Tick());
  now_ = deadline;
  EXPECT_TRUE(scheduler_->Tick());
  while (scheduler_->Tick()) {
  }
  slow.Read();
  EXPECT_EQ(slow.got.finish->reason, FinishReason::kStalled);
  EXPECT_EQ(slow.got.finish->status.code(), Code::kAborted);
  EXPECT_EQ(slow.got.tokens.size(), 4u);
  next.Read();
  EXPECT_EQ(next.got.finish->reason, FinishReason::kLength);
}

TEST_F(SchedulerTest, ScoreWithoutInputStalls) {
  Start({.max_sequences = 1, .slot_memory = 1000});
  Client score = Score();
  EXPECT_FALSE(scheduler_->Tick());
  now_ += 29s;
  score.feed->Push({1, 2, 3});
  EXPECT_TRUE(scheduler_->Tick());  // two of them; the third waits for its successor
  EXPECT_FALSE(scheduler_->Tick());
  score.Read();
  EXPECT_EQ(score.got.scores.size(), 2u);
  now_ += 29s;
  EXPECT_FALSE(scheduler_->Tick());
  EXPECT_EQ(scheduler_->running(), 1);
  now_ += 1s;
  scheduler_->Tick();
  score.Read();
  EXPECT_EQ(score.got.finish->reason, FinishReason::kStalled);
  EXPECT_EQ(score.got.finish->usage.prompt_tokens, 3);
}

TEST_F(SchedulerTest, DeadlinesWaitingAndRunning) {
  Start({.max_sequences = 1, .slot_memory = 1000});
  Client running = Generate(3, 1000, 100000, now_ + 10s), waiting = Generate(3, 5, 100, now_ + 5s);
  EXPECT_TRUE(scheduler_->Tick());
  EXPECT_EQ(scheduler_->NextDeadline(), now_ + 5s);
  now_ += 5s;
  scheduler_->Tick();
  waiting.Read();
  EXPECT_EQ(waiting.got.finish->reason, FinishReason::kDeadline);
  EXPECT_EQ(waiting.got.finish->status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(waiting.got.finish->timings.queue, 5s);
  EXPECT_EQ(waiting.got.finish->timings.total, 5s);
  EXPECT_EQ(waiting.got.finish->timings.prefill, 0s);
  now_ += 5s;
  scheduler_->Tick();
  running.Read();
  EXPECT_EQ(running.got.finish->reason, FinishReason::kDeadline);
  EXPECT_EQ(running.got.tokens.size(), 2u);
  EXPECT_EQ(running.got.finish->usage.completion_tokens, 2);
  EXPECT_EQ(scheduler_->running(), 0);
  EXPECT_EQ(scheduler_->NextDeadline(), Clock::time_point::max());
}

TEST_F(SchedulerTest, CancelFreesTheSlotAtOnce) {
  Start({.max_sequences = 1, .slot_memory = 1000});
  Client running = Generate(3, 1000), waiting = Generate(3, 5), last = Generate(3, 5);
  scheduler_->Tick();
  scheduler_->End(waiting.id, FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
  scheduler_->End(running.id, FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
  scheduler_->End(12345, FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
  for (Client* client : {&running, &waiting}) {
    client->Read();
    EXPECT_EQ(client->got.finish->reason, FinishReason::kCancelled);
  }
  EXPECT_EQ(running.got.tokens.size(), 1u);
  EXPECT_EQ(scheduler_->running(), 0);
  EXPECT_TRUE(scheduler_->Tick());
  last.Read();
  EXPECT_EQ(last.got.tokens.size(), 1u);
  scheduler_->EndAll(FinishReason::kCancelled, Unavailable("shutting down"));
  last.Read();
  EXPECT_EQ(last.got.finish->status.code(), Code::kUnavailable);
  EXPECT_EQ(endings_, 3);
}

TEST_F(SchedulerTest, ProgressOfLongPromptsOnceASecond) {
  Start({.max_sequences = 1, .slot_memory = 1000});
  Client client = Generate(32 * 20, 1);
  for (int i = 0; i < 20; ++i) {
    now_ += 300ms;
    scheduler_->Tick();
  }
  client.Read();
  ASSERT_TRUE(client.done());
  // Steps at 0.3, 0.6, ... after the admission at 0.3: progress at 1.5, 2.7, 3.9 and 5.1.
  ASSERT_EQ(client.got.progress.size(), 4u);
  EXPECT_EQ(client.got.progress[0].processed, 32 * 5);
  EXPECT_EQ(client.got.progress[1].processed, 32 * 9);
  EXPECT_EQ(client.got.progress[0].total, 32 * 20);
  EXPECT_EQ(client.got.finish->timings.queue, 300ms);
  EXPECT_EQ(client.got.finish->timings.prefill, 19 * 300ms);
  EXPECT_EQ(client.got.finish->timings.first_token, 20 * 300ms);
}

TEST_F(SchedulerTest, DecodingGoesOnBesideALongPrompt) {
  Start({.max_sequences = 3, .slot_memory = 1000});
  Client talker = Generate(3, 1000);
  scheduler_->Tick();
  Client longer = Generate(10000, 1), brief = Generate(20, 1);
  for (int i = 0; i < 10; ++i) scheduler_->Tick();
  talker.Read();
  EXPECT_EQ(talker.got.tokens.size(), 11u);
  brief.Read();
  EXPECT_TRUE(brief.done());
  EXPECT_EQ(model_->largest_step, 32);
}

// A stream beside a long prompt, and beside a turn of a long session: a token of a prompt costs 500
// us, and 2 us for each token before it, so that one after 3,000 takes as long as thirteen first
// ones.
TEST_F(SchedulerTest, DeepPromptsKeepTheBudgetFromTheirFirstStep) {
  const SchedulerOptions options{.max_sequences = 4, .slot_memory = 1000000, .step_budget = 25ms};
  Start(options, /*growing=*/true);
  GenerateRequest turn = Following(3000);
  turn.prompt.assign(60, 5);
  scheduler_.reset();  // a server that has seen no long text
  Start(options, /*growing=*/true);
  model_->on_step = [this](const Batch& batch) {
    now_ += 4ms;
    for (const Segment& segment : batch.segments()) {
      if (segment.rows > 1) now_ += segment.rows * (500us + 2us * segment.state->position());
    }
  };
  Client talker = Generate(3, 10000);
  for (int i = 0; i < 10; ++i) scheduler_->Tick();
  Client brief = Generate(200, 1);
  const int ticks = TickUntilDone({&brief}, 29ms);

  Client deep = Generate(turn, 1);
  // Four tokens are the least of a step.
  TickUntilDone({&deep}, 4ms + 4 * (500us + 2us * 3060));
  EXPECT_TRUE(deep.done());

  brief = Generate(200, 1);
  EXPECT_LE(TickUntilDone({&brief}, 29ms), ticks + 2) << "as fast as before";
  Client longer = Generate(2500, 1);
  TickUntilDone({&longer}, 29ms);
  EXPECT_TRUE(longer.done());
  scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
}

// A state that is stored for the prefix cache is copied in parts of at most half a step's budget
// while another sequence can use the step, and at once otherwise.
TEST_F(SchedulerTest, StoringAStateHoldsNobodyUp) {
  PrefixCache cache({.memory = 1 << 20, .min_tokens = 8, .every = 0});
  context_.prefix_cache = &cache;
  Start({.max_sequences = 3, .slot_memory = 1000, .step_budget = 10ms});
  model_->on_copy = [this] { now_ += 4ms; };
  const int parts = FakeState(&model_->live_states).parts();

  Client alone = Generate(20, 1);
  EXPECT_EQ(TickUntilDone({&alone}, 1s), 2);
  EXPECT_EQ(cache.stats().entries, 1);

  Client talker = Generate(3, 1000);
  scheduler_->Tick();
  Client other = Generate(8, 1), cancelled = Generate(9, 5);
  int ticks = 0;
  while (!other.done() && ticks < 100) {
    const Clock::time_point before = now_;
    scheduler_->Tick();
    EXPECT_LE(now_ - before, 5ms);
    other.Read();
    if (++ticks == 3) scheduler_->End(cancelled.id, FinishReason::kCancelled, Status());
  }
  EXPECT_GE(ticks, parts);
  EXPECT_EQ(cache.stats().entries, 2) << "what was cancelled is not stored";

  int copied = 0;
  model_->on_copy = [&] { ++copied; };
  Client first = Generate(16, 1), same = Generate(16, 1);
  while (!first.done() || !same.done()) {
    scheduler_->Tick();
    ++ticks;
    first.Read();
    same.Read();
  }
  EXPECT_EQ(copied, 3 * parts)
      << "both load the prefix of 8 tokens; the same prompt is stored once";
  talker.Read();
  EXPECT_EQ(std::ssize(talker.got.tokens), 1 + ticks);
  scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
}

// A state that a sequence starts from is loaded in the same way.
TEST_F(SchedulerTest, LoadingAStateHoldsNobodyUp) {
  Start({.max_sequences = 4, .slot_memory = 1000, .step_budget = 10ms});
  const int parts = FakeState(&model_->live_states).parts();
  const GenerateRequest request = Following(19);
  Client alone = Generate(request, 5);
  TickUntilDone({&alone}, 1s);

  model_->on_copy = [this] { now_ += 4ms; };
  Client talker = Generate(3, 1000);
  scheduler_->Tick();
  Client other = Generate(request, 5), cancelled = Generate(request, 5);
  GenerateRequest moves = request;
  moves.migrates = true;
  Client moving = Generate(moves, 5);
  scheduler_->Tick();
  EXPECT_EQ(scheduler_->running(), 4);
  scheduler_->End(cancelled.id, FinishReason::kCancelled, Status());
  EXPECT_GE(TickUntilDone({&other, &moving}, 5ms), 2 * parts);
  EXPECT_EQ(other.got.tokens, alone.got.tokens);
  EXPECT_EQ(moving.got.tokens, alone.got.tokens);

  // One that leaves while its state is loaded leaves with the state that it starts from.
  moving = Generate(moves, 5);
  for (int i = 0; i < parts / 2; ++i) scheduler_->Tick();
  scheduler_->MigrateAll();
  moving.Read();
  ASSERT_TRUE(moving.done());
  ASSERT_NE(moving.got.finish->snapshot, nullptr);
  EXPECT_EQ(moving.got.finish->snapshot->state, request.start->state);
  EXPECT_EQ(moving.got.finish->snapshot->pending.size(), request.start->pending.size() + 2);
  scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
}

// The state of a sequence that ends with a snapshot is saved in the same way: that of a session,
// and of a migrated completion with a slot or without.
TEST_F(SchedulerTest, SavingAStateHoldsNobodyUp) {
  Start({.max_sequences = 3, .slot_memory = 1000, .preempted_memory = 100, .step_budget = 10ms});
  const int parts = FakeState(&model_->live_states).parts();
  GenerateRequest keeps = Request(19);
  keeps.keep = true;
  Client alone = Generate(keeps, 3);
  TickUntilDone({&alone}, 1s);

  model_->on_copy = [this] { now_ += 4ms; };
  GenerateRequest stays = Request(3);
  stays.migrates = false;
  Client talker = Generate(stays, 1000);
  scheduler_->Tick();
  Client kept = Generate(keeps, 3);
  EXPECT_GE(TickUntilDone({&kept}, 5ms), parts);
  EXPECT_EQ(kept.got.tokens, alone.got.tokens);
  ASSERT_NE(kept.got.finish->snapshot, nullptr);
  EXPECT_EQ(kept.got.finish->snapshot->state->bytes, alone.got.finish->snapshot->state->bytes);
  EXPECT_EQ(kept.got.finish->snapshot->pending, alone.got.finish->snapshot->pending);

  Client one = Generate(Request(5), 50), two = Generate(Request(5), 50);
  for (int i = 0; i < 3; ++i) scheduler_->Tick();
  GenerateRequest urgent = Request(5);
  urgent.info.priority = 1;
  Client high = Generate(urgent, 50);
  for (int i = 0; i < 3; ++i) scheduler_->Tick();
  ASSERT_EQ(scheduler_->stats().preempted, 1);
  scheduler_->MigrateAll();
  EXPECT_GE(TickUntilDone({&one, &two, &high}, 5ms), 3 * parts);
  for (const Client* moved : {&one, &two, &high}) {
    EXPECT_EQ(moved->got.finish->reason, FinishReason::kMigrated);
    ASSERT_NE(moved->got.finish->snapshot, nullptr);
    EXPECT_EQ(moved->got.finish->snapshot->position(), 5 + std::ssize(moved->got.tokens) - 1);
    EXPECT_EQ(moved->got.finish->snapshot->pending.size(), 1u);
  }
  talker.Read();
  EXPECT_FALSE(talker.done());

  // A state that a device that has failed holds is no state.
  Client lost = Generate(keeps, 3);
  for (int i = 0; i < 100 && lost.got.tokens.size() < 3; ++i) {
    scheduler_->Tick();
    lost.Read();
  }
  ASSERT_FALSE(lost.done());
  model_->fail_after = -1;
  scheduler_->Tick();
  lost.Read();
  ASSERT_TRUE(lost.done());
  EXPECT_EQ(lost.got.finish->status.code(), Code::kInternal);
  EXPECT_EQ(lost.got.finish->snapshot, nullptr);
  scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
}

TEST_F(SchedulerTest, AStateThatIsSavedIsNotDropped) {
  Start({.max_sequences = 1, .slot_memory = 1000, .preempted_memory = 100, .step_budget = 10ms});
  Client low = Generate(Request(5), 50);
  for (int i = 0; i < 3; ++i) scheduler_->Tick();
  GenerateRequest urgent = Request(5);
  urgent.info.priority = 1;
  urgent.migrates = false;
  Client high = Generate(urgent, 50);
  scheduler_->Tick();
  ASSERT_EQ(scheduler_->stats().preempted, 1);
  scheduler_->MigrateAll();
  model_->on_copy = [this] { now_ += 4ms; };
  scheduler_->Tick();  // begins to save the preempted state
  low.Read();
  ASSERT_FALSE(low.done());
  urgent.info.priority = 2;
  Client higher = Generate(urgent, 5);
  EXPECT_GT(TickUntilDone({&low, &high, &higher}, 1s), 0);
  EXPECT_EQ(scheduler_->stats().dropped_states, 1) << "the state of `high`";
  ASSERT_NE(low.got.finish->snapshot, nullptr);
  EXPECT_EQ(low.got.finish->snapshot->position(), 5 + std::ssize(low.got.tokens) - 1);
  EXPECT_EQ(high.got.tokens.size(), 50u);
}

// The memory of new states is cleared in the same way where the pool has no state that is.
TEST_F(SchedulerTest, TouchingAStateHoldsNobodyUp) {
  Start({.max_sequences = 5, .slot_memory = 1000, .step_budget = 10ms});
  const int parts = FakeState(&model_->live_states).parts();
  Client talker = Generate(3, 1000);
  scheduler_->Tick();
  model_->touches_late = true;
  model_->on_copy = [this] { now_ += 4ms; };
  Client first = Generate(5, 3), second = Generate(7, 3), cancelled = Generate(9, 3);
  GenerateRequest moves = Request(6);
  moves.migrates = true;
  Client moving = Generate(moves, 3);
  scheduler_->Tick();
  EXPECT_EQ(scheduler_->running(), 5);
  scheduler_->End(cancelled.id, FinishReason::kCancelled, Status());
  EXPECT_GE(TickUntilDone({&first, &second, &moving}, 5ms), 3 * parts);
  EXPECT_EQ(first.got.finish->status.code(), Code::kOk);
  // States that were used, and the one that was abandoned half way, serve the next.
  Client again = Generate(5, 3), other = Generate(9, 3);
  TickUntilDone({&again, &other}, 5ms);
  EXPECT_EQ(again.got.tokens, first.got.tokens);
  EXPECT_EQ(other.got.tokens.size(), 3u);
  scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
  EXPECT_EQ(scheduler_->states().reserved(), 0u);
}

TEST_F(SchedulerTest, AStateOfTheWrongSizeIsRefused) {
  Start({.max_sequences = 2, .slot_memory = 1000});
  GenerateRequest request = Following(19);
  auto damaged = std::make_shared<Snapshot>(*request.start);
  auto state = std::make_shared<SavedState>(*damaged->state);
  state->bytes.pop_back();
  damaged->state = state;
  request.start = damaged;
  Client client = Generate(request, 5);
  TickUntilDone({&client}, 1s);
  EXPECT_EQ(client.got.finish->status.code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler_->stats().state_bytes, 0u);
  EXPECT_EQ(scheduler_->states().reserved(), 0u);
}

// Forks start from copies of their source, which are made in parts; no more states than choices and
// one.
TEST_F(SchedulerTest, ForkingHoldsNobodyUp) {
  std::map<int, testing::CollectedChoice> expected;
  for (const size_t memory : {1000, 500}) {
    Start({.max_sequences = 5, .slot_memory = memory, .step_budget = 10ms});
    model_->on_copy = [this] { now_ += 4ms; };
    Client talker = Generate(3, 1000);
    scheduler_->Tick();
    GenerateRequest request = Request(12);
    request.params.n = request.params.best_of = 3;
    request.params.sampling.temperature = 1;
    Client choices = Generate(request, 40), cancelled = Generate(request, 40);
    int most = 0;
    for (int ticks = 0; !choices.done() && ticks < 1000; ++ticks) {
      const Clock::time_point before = now_;
      scheduler_->Tick();
      EXPECT_LE(now_ - before, 5ms);
      most = std::max(most, static_cast<int>(model_->live_states));
      choices.Read();
      if (ticks == 7) scheduler_->End(cancelled.id, FinishReason::kCancelled, Status());
    }
    ASSERT_TRUE(choices.done());
    EXPECT_TRUE(choices.got.finish->status.ok()) << choices.got.finish->status.ToString();
    EXPECT_LE(most, memory / 100);
    EXPECT_EQ(choices.got.choices.size(), 3u);
    if (expected.empty()) expected = choices.got.choices;
    EXPECT_EQ(choices.got.choices, expected);
    scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
    EXPECT_EQ(scheduler_->states().reserved(), 0u);
    scheduler_.reset();
  }
}

// A device's states are all there before the first request: none is made later. Of the host's, one
// is.
TEST(StatePoolTest, FillMakesAllStatesAtOnce) {
  class DeviceModel : public FakeModel {
   public:
    bool host_memory() const override { return false; }
  } model;
  {
    StatePool pool(&model, 350, 210);  // bytes for three and two states of 100
    pool.Fill();
    EXPECT_EQ(pool.free(), 5u);
    EXPECT_EQ(model.live_states, 5);
    std::vector<std::unique_ptr<SequenceState>> taken;
    taken.reserve(5);
    for (int i = 0; i < 5; ++i) taken.push_back(pool.Acquire());
    EXPECT_EQ(model.live_states, 5);
    for (auto& state : taken) pool.Release(std::move(state));
    EXPECT_EQ(pool.free(), 5u);
  }
  FakeModel host;
  {
    StatePool pool(&host, 350, 210);
    pool.Fill();
    EXPECT_EQ(pool.free(), 1u);
  }
  FakeModel growing(32, true);
  StatePool pool(&growing, 350, 210);
  pool.Fill();
  EXPECT_EQ(pool.free(), 0u);
}

// States that a thread beside the test's own makes once it may.
class HostModel : public FakeModel {
 public:
  std::unique_ptr<SequenceState> NewState() override {
    std::unique_lock lock(mutex_);
    if (std::this_thread::get_id() != here_) {
      may_finish_.wait(lock, [this] { return finishes_; });
      ++made_beside;
    }
    return FakeModel::NewState();
  }
  bool makes_states_beside_steps() const override { return true; }
  void LetFinish() {
    std::lock_guard lock(mutex_);
    finishes_ = true;
    may_finish_.notify_all();
  }
  std::atomic<int> made_beside = 0;

 private:
  const std::thread::id here_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable may_finish_;
  bool finishes_ = false;
};

TEST(StatePoolTest, TheNextStateIsMadeBesideSteps) {
  HostModel model;
  model.LetFinish();
  StatePool pool(&model, 250, 100);  // bytes for two states of 100 and one
  pool.Fill();
  auto state = pool.Acquire();
  while (pool.free() == 0) {
    pool.Release(std::move(state));
    state = pool.Acquire();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto other = pool.Acquire();
  EXPECT_NE(other, nullptr);
  EXPECT_GE(model.made_beside, 1);
  EXPECT_LE(model.live_states, 3);
}

TEST(StatePoolTest, AStateIsWaitedForWhereNoOtherOneMayBeMade) {
  HostModel model;
  StatePool pool(&model, 250, 100);
  pool.Fill();
  const auto first = pool.Acquire();   // begins the second
  const auto second = pool.Acquire();  // does not wait for it
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(model.live_states, 2);
  std::thread lets([&] { model.LetFinish(); });
  const auto third = pool.Acquire();
  lets.join();
  EXPECT_NE(third, nullptr);
  EXPECT_EQ(model.live_states, 3);
  EXPECT_EQ(model.made_beside, 1);
}

}  // namespace
}  // namespace polysketch
