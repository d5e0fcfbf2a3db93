// Who comes first: tenants, priorities and waiting time, in the parts and through the scheduler.
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/score_sequence.h"
#include "engine/scheduler/wait_queue.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeModel;
using testing::kFakeVocab;
using namespace std::chrono_literals;

TEST(WaitQueueTest, LevelsRiseWithWaiting) {
  EXPECT_EQ(AgedLevel(2, 0s, 10s), 2);
  EXPECT_EQ(AgedLevel(2, 9999ms, 10s), 2);
  EXPECT_EQ(AgedLevel(-1, 30s, 10s), 2);
  EXPECT_EQ(AgedLevel(0, -1s, 10s), 0);
  EXPECT_GT(AgedLevel(0, std::chrono::hours(1'000'000), 10s), 1'000'000 - 1);
}

class FairnessTest : public ::testing::Test {
 protected:
  struct Client {
    RequestId id = 0;
    std::shared_ptr<EventStream> stream;
    Collected got;
    Clock::time_point ended;
  };

  void Start(SchedulerOptions options) {
    options.stall_deadline = 1h;
    scheduler_ = std::make_unique<Scheduler>(&model_, context_, options);
  }
  void TearDown() override {
    scheduler_->EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
    scheduler_.reset();
  }
  Client* Send(int prompt, int tokens, const std::string& tenant, int priority = 0,
               size_t capacity = 100000, int n = 1) {
    auto client = std::make_unique<Client>();
    client->id = ++next_id_;
    client->stream = std::make_shared<EventStream>(capacity);
    GenerateRequest request;
    request.info.arrival = now_;
    request.info.tenant = tenant;
    request.info.principal = {tenant.empty() ? host_ : tenant, part_};
    request.info.priority = priority;
    request.prompt.assign(static_cast<size_t>(prompt), 5);
    request.params.ignore_eos = true;
    request.params.n = request.params.best_of = n;
    scheduler_->Add(std::make_unique<GenerateSequence>(context_, client->id, request, tokens, 1,
                                                       client->stream));
    clients_.push_back(std::move(client));
    return clients_.back().get();
  }
  // Steps of 10 ms.
  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_ += 10ms;
      scheduler_->Tick();
      for (auto& client : clients_) {
        const bool was_over = client->got.finish.has_value();
        client->got.Drain(client->stream.get());
        if (!was_over && client->got.finish) client->ended = now_;
      }
    }
  }
  static size_t Tokens(const Client* client) { return client->got.tokens.size(); }

  Clock::time_point now_ = Clock::now();
  EngineObserver observer_;
  SequenceContext context_{.vocab_size = kFakeVocab,
                           .eos_ids = {},
                           .max_step_tokens = 32,
                           .observer = &observer_,
                           .now = [this] { return now_; }};
  FakeModel model_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Client>> clients_;
  RequestId next_id_ = 0;
  std::string host_ = "10.0.0.1";  // of the next requests
  std::string part_;               // of the next requests
};

TEST_F(FairnessTest, TenantWithOneRequestDoesNotWaitBehindAHundred) {
  Start({.max_sequences = 2, .slot_memory = 1000});
  for (int i = 0; i < 100; ++i) Send(3, 20, "crowd");
  Run(5);
  Client* lonely = Send(3, 20, "lonely");
  Run(45);  // one of the crowd ends, then it runs at once
  EXPECT_TRUE(lonely->got.finish.has_value());
}

// In the wait queue and in the batch: slots and tokens.
TEST_F(FairnessTest, HostsWithoutATenantAreClientsOfTheirOwn) {
  Start({.max_sequences = 2, .slot_memory = 1000});
  for (int i = 0; i < 100; ++i) Send(3, 20, "");
  Run(5);
  host_ = "10.0.0.2";
  Client* lonely = Send(3, 20, "");
  Run(45);
  EXPECT_TRUE(lonely->got.finish.has_value());
}

TEST_F(FairnessTest, PromptsOfAHostDoNotDelayThatOfAnother) {
  Start({.max_sequences = 12, .slot_memory = 100000});
  for (int i = 0; i < 10; ++i) Send(1000, 1, "");
  Run(1);
  host_ = "10.0.0.2";
  Client* lonely = Send(320, 1, "");
  Run(30);  // of 32 tokens, of which half are its own; a tenth with equal turns of prompts
  EXPECT_TRUE(lonely->got.finish.has_value());
}

TEST_F(FairnessTest, OneTenantIsOneClientOnAnyHost) {
  Start({.max_sequences = 2, .slot_memory = 1000});
  for (int i = 0; i < 20; ++i) Send(3, 20, "t");
  Run(5);
  host_ = "10.0.0.2";
  Client* same = Send(3, 20, "t");
  Client* named = Send(3, 20, "10.0.0.1");  // no host's name is a tenant's
  Run(60);
  EXPECT_FALSE(same->got.finish.has_value());
  EXPECT_TRUE(named->got.finish.has_value());
}

// All requests of the crowd have waited longer than the newcomer's, which age as fast.
TEST_F(FairnessTest, ABacklogDoesNotAgeBeforeOtherTenants) {
  Start({.max_sequences = 2, .slot_memory = 1000, .preempted_memory = 1000, .aging = 1s});
  for (int i = 0; i < 300; ++i) Send(3, 20, "crowd");
  Run(500);  // 5 s: five levels
  for (int round = 0; round < 5; ++round) {
    Client* lonely = Send(3, 20, "lonely");
    Run(45);
    EXPECT_TRUE(lonely->got.finish.has_value()) << round;
  }
  EXPECT_GT(scheduler_->stats().waiting, 100);
}

TEST_F(FairnessTest, ATenantOfALowerPriorityIsServedUnderEndlessHighOnes) {
  Start({.max_sequences = 1, .slot_memory = 1000, .preempted_memory = 1000, .aging = 1s});
  std::vector<Client*> low;
  for (int i = 0; i < 3; ++i) low.push_back(Send(3, 10, "low", /*priority=*/-2));
  for (int i = 0; i < 150; ++i) {
    Send(3, 10, "high", 1);
    Run(10);
  }
  // Three priorities are three seconds of waiting, for each slot that the tenant gets.
  for (const Client* client : low) EXPECT_TRUE(client->got.finish.has_value());
}

TEST_F(FairnessTest, TenantsGetEqualShares) {
  Start({.max_sequences = 4, .slot_memory = 1000});
  std::vector<Client*> one, other;
  for (int i = 0; i < 200; ++i) one.push_back(Send(30, 10, "one"));
  for (int i = 0; i < 40; ++i) other.push_back(Send(30, 10, "other"));
  Run(100);
  const auto done = [](const std::vector<Client*>& clients) {
    int64_t count = 0;
    for (const Client* client : clients) count += client->got.finish.has_value();
    return count;
  };
  EXPECT_GT(done(one) + done(other), 20);
  EXPECT_LE(std::abs(done(one) - done(other)), 3);
}

TEST_F(FairnessTest, HigherPriorityPreemptsAndTheOtherGoesOnWhereItWas) {
  Start({.max_sequences = 1, .slot_memory = 1000, .preempted_memory = 1000});
  Client* alone = Send(3, 30, "");
  Run(40);
  Client* low = Send(3, 30, "");
  Run(10);
  const size_t before = Tokens(low);
  Client* high = Send(3, 5, "", /*priority=*/1);
  Run(5);
  EXPECT_TRUE(high->got.finish.has_value());
  EXPECT_EQ(Tokens(low), before);
  EXPECT_EQ(scheduler_->stats().preemptions, 1);
  Run(30);
  EXPECT_EQ(low->got.tokens, alone->got.tokens);
  EXPECT_EQ(scheduler_->states().preempted(), 0u);
  // Steps: nothing was computed twice.
  EXPECT_EQ(model_.steps, 30 + 30 + 5);
}

TEST_F(FairnessTest, WithoutPreemptedMemoryTheStateIsComputedAgain) {
  Start({.max_sequences = 1, .slot_memory = 1000, .preempted_memory = 99});
  Client* alone = Send(3, 30, "");
  Run(30);
  Client* low = Send(3, 30, "");
  Run(10);
  Client* high = Send(3, 5, "", 1);
  Run(5);
  EXPECT_TRUE(high->got.finish.has_value());
  EXPECT_EQ(Tokens(low), 10u);
  EXPECT_EQ(scheduler_->stats().preempted, 1);
  EXPECT_EQ(scheduler_->stats().dropped_states, 1);
  EXPECT_EQ(scheduler_->stats().dropped_tokens, 3 + 9);
  Run(22);
  EXPECT_TRUE(low->got.finish.has_value());
  EXPECT_EQ(low->got.tokens, alone->got.tokens);
  EXPECT_EQ(model_.steps, 30 + 10 + 5 + 2 + 20) << "prompt and output again, a step each";
}

// Waiting alone is no reason to compute a state of the same client again.
TEST_F(FairnessTest, ABacklogOfOneClientDropsNoStates) {
  Start({.max_sequences = 4, .slot_memory = 1000, .preempted_memory = 200, .aging = 100ms});
  for (int i = 0; i < 20; ++i) Send(3, 100, "crowd");
  Run(300);
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  EXPECT_EQ(scheduler_->stats().dropped_states, 0);
}

// Many long streams of one client: preempted memory is full of them.
TEST_F(FairnessTest, ANewcomerGetsASlotAtOnceFromTheClientThatHasMost) {
  Start({.max_sequences = 4, .slot_memory = 400, .preempted_memory = 100, .aging = 1s});
  std::vector<Client*> crowd;
  for (int i = 0; i < 10; ++i) crowd.push_back(Send(3, 500, "crowd"));
  Run(250);  // those that waited longest take slots of others
  EXPECT_EQ(scheduler_->states().preempted(), 100u);
  for (const char* name : {"a", "b", "c"}) {
    Client* newcomer = Send(3, 20, name);
    Run(2);
    EXPECT_GE(Tokens(newcomer), 1u) << name;
  }
  EXPECT_EQ(scheduler_->running(), 4) << "one of the crowd";
  Run(30);
  EXPECT_GT(scheduler_->stats().dropped_states, 0);
  Run(10'000);
  for (Client* client : crowd) {
    ASSERT_TRUE(client->got.finish.has_value());
    EXPECT_EQ(client->got.tokens, crowd[0]->got.tokens);
  }
  EXPECT_EQ(scheduler_->states().preempted(), 0u);
}

TEST_F(FairnessTest, ForksDoNotGoBeforeANewcomer) {
  Start({.max_sequences = 4, .slot_memory = 600, .preempted_memory = 100});
  std::vector<Client*> crowd;
  for (int i = 0; i < 3; ++i) crowd.push_back(Send(30, 40, "crowd", 0, 100000, /*n=*/16));
  Run(20);
  for (int i = 0; i < 20; ++i) {
    Client* newcomer = Send(3, 2, "newcomer");
    Run(4);
    EXPECT_TRUE(newcomer->got.finish.has_value()) << i;
  }
  Run(2000);
  for (const Client* client : crowd) {
    ASSERT_TRUE(client->got.finish.has_value());
    EXPECT_EQ(client->got.choices.size(), 16u);
    EXPECT_EQ(client->got.choices, crowd[0]->got.choices);
  }
}

// Each client has one slot, and there is none for another.
TEST_F(FairnessTest, ANewcomerGetsASlotWithinASliceFromClientsWithOneEach) {
  Start({.max_sequences = 3, .slot_memory = 300, .preempted_memory = 100, .slice = 100ms});
  std::vector<Client*> clients;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    clients.push_back(Send(3, 300, name));
    Run(12);
    EXPECT_GE(Tokens(clients.back()), 1u) << name;
  }
  Run(1500);
  for (const Client* client : clients) EXPECT_TRUE(client->got.finish.has_value());
}

TEST_F(FairnessTest, APriorityDoesNotKeepAClientFromItsFirstSlot) {
  Start({.max_sequences = 4, .slot_memory = 400, .preempted_memory = 100});
  for (int i = 0; i < 10; ++i) Send(3, 500, "high", /*priority=*/1);
  Run(10);
  Client* low = Send(3, 10, "low");
  Client* second = Send(3, 10, "low");
  Run(3);
  EXPECT_GE(Tokens(low), 1u);
  EXPECT_EQ(Tokens(second), 0u) << "beyond the first slot the priority counts";
}

// The parts of a client share what the client has, and no more.
TEST_F(FairnessTest, PartsShareTheShareOfTheirClient) {
  Start({.max_sequences = 8, .slot_memory = 800, .preempted_memory = 100});
  for (int i = 0; i < 20; ++i) {
    part_ = "crowd";
    Send(3, 1000, "gateway");
  }
  Run(10);
  part_ = "newcomer";
  Client* first = Send(3, 1000, "gateway");
  Client* second = Send(3, 1000, "gateway");
  Run(3);
  EXPECT_GE(Tokens(first), 1u);
  EXPECT_GE(Tokens(second), 1u);
  for (int i = 0; i < 10; ++i) {
    part_ = StrCat("part ", i);
    Send(3, 1000, "gateway");
  }
  part_.clear();
  std::vector<Client*> others;
  for (int i = 0; i < 6; ++i) others.push_back(Send(3, 1000, "other"));
  Run(3);
  const auto running = [](const std::vector<Client*>& clients) {
    return std::ranges::count_if(clients, [](const Client* one) { return Tokens(one) > 0; });
  };
  EXPECT_EQ(running(others), 4) << "half of the slots, whatever parts the other names";
}

// Prompts too: a part with many has as much as one with one.
TEST_F(FairnessTest, PromptsOfAPartDoNotDelayThoseOfAnother) {
  Start({.max_sequences = 12, .slot_memory = 100000});
  part_ = "crowd";
  for (int i = 0; i < 10; ++i) Send(1000, 1, "gateway");
  Run(1);
  part_ = "lonely";
  Client* lonely = Send(320, 1, "gateway");
  Run(30);
  EXPECT_TRUE(lonely->got.finish.has_value());
}

// The prompts of a client that have waited long are first of that client only.
TEST_F(FairnessTest, OldPromptsOfAClientDoNotDelayThatOfAnother) {
  Start({.max_sequences = 12, .slot_memory = 100000, .aging = 100ms});
  for (int i = 0; i < 30; ++i) Send(400, 1, "crowd");
  Run(200);
  ASSERT_GT(scheduler_->stats().waiting, 0);
  Client* newcomer = Send(32, 1, "newcomer");
  Run(4);
  EXPECT_TRUE(newcomer->got.finish.has_value());
}

TEST_F(FairnessTest, APriorityDoesNotKeepAPromptFromItsFirstTokens) {
  Start({.max_sequences = 4, .slot_memory = 400, .preempted_memory = 100, .slice = 100ms});
  for (int i = 0; i < 10; ++i) Send(10000, 1, "high", /*priority=*/1);
  Run(10);
  Client* low = Send(20, 1, "low");
  Run(15);
  EXPECT_TRUE(low->got.finish.has_value());
}

// The tokens of a long score are gone, so that its state is never dropped.
TEST_F(FairnessTest, LongScoresLeavePreemptedMemoryForOthers) {
  Start({.max_sequences = 2, .slot_memory = 200, .preempted_memory = 200, .aging = 1s});
  std::vector<std::shared_ptr<EventStream>> streams;
  for (int i = 0; i < 4; ++i) {
    ScoreRequest request;
    request.info.principal.name = "crowd";
    request.info.arrival = now_;
    request.feed = std::make_shared<TokenFeed>(100000);
    request.feed->Push(std::vector<int32_t>(i < 2 ? 40000 : 100, 3));
    request.feed->Close();
    streams.push_back(std::make_shared<EventStream>(100000));
    scheduler_->Add(std::make_unique<ScoreSequence>(context_, static_cast<RequestId>(1000 + i),
                                                    request, streams.back()));
  }
  Run(1600);
  for (const char* name : {"a", "b"}) {
    Client* newcomer = Send(3, 5, name);
    Run(12);
    EXPECT_TRUE(newcomer->got.finish.has_value()) << name;
  }
  Run(3000);
  for (size_t i = 0; i < streams.size(); ++i) {
    Collected got;
    got.Drain(streams[i].get());
    ASSERT_TRUE(got.finish && got.finish->status.ok()) << i;
    EXPECT_EQ(std::ssize(got.scores), i < 2 ? 39999 : 99) << i;
  }
}

// Six clients whose states do not fit all: by default their sequences take turns, and what does not
// fit preempted memory is computed again. With reserved memory every sequence goes on to its end.
TEST_F(FairnessTest, ReservedMemoryIsTakenByNoOtherSequence) {
  for (const KvAdmission admission : {KvAdmission::kPreempt, KvAdmission::kReserve}) {
    Start({.max_sequences = 16,
           .slot_memory = 400,
           .preempted_memory = 200,
           .kv_admission = admission,
           .aging = 200ms,
           .slice = 50ms});
    const size_t first = clients_.size();
    int64_t tokens = 0;
    model_.on_step = [&](const Batch& batch) { tokens += std::ssize(batch.tokens()); };
    for (int i = 0; i < 120; ++i) Send(20, 100, StrCat("client ", i % 6), /*priority=*/i % 3);
    Run(10'000);
    for (size_t i = first; i < clients_.size(); ++i) {
      ASSERT_TRUE(clients_[i]->got.finish.has_value()) << i;
      EXPECT_EQ(clients_[i]->got.tokens, clients_[0]->got.tokens);
    }
    const EngineStats stats = scheduler_->stats();
    if (admission == KvAdmission::kPreempt) {
      EXPECT_GE(stats.preemptions, 100);
      EXPECT_GT(stats.dropped_states, 0);
      EXPECT_EQ(tokens, 120 * (20 + 99) + stats.dropped_tokens);
    } else {
      EXPECT_EQ(stats.preemptions, 0);
      EXPECT_EQ(stats.dropped_states, 0);
      EXPECT_EQ(stats.dropped_tokens, 0);
      EXPECT_EQ(tokens, 120 * (20 + 99)) << "each once; the last of an output is not processed";
    }
  }
}

// A slot is not memory: it changes hands while the state is kept.
TEST_F(FairnessTest, WithReservedMemoryASlotIsTakenWhileTheStateIsKept) {
  for (const size_t preempted : {99, 100}) {
    Start({.max_sequences = 1,
           .slot_memory = 1000,
           .preempted_memory = preempted,
           .kv_admission = KvAdmission::kReserve});
    Client* low = Send(3, 30, "");
    Run(10);
    Client* high = Send(3, 5, "", /*priority=*/1);
    Run(5);
    EXPECT_EQ(high->got.finish.has_value(), preempted == 100);
    EXPECT_EQ(scheduler_->stats().preemptions, preempted == 100);
    Run(30);
    EXPECT_TRUE(low->got.finish.has_value());
    EXPECT_TRUE(high->got.finish.has_value());
    EXPECT_EQ(scheduler_->stats().dropped_states, 0);
  }
}

// Memory that only an idle sequence holds comes back at the stall deadline.
TEST_F(FairnessTest, ReservedMemoryOfAnIdleSequenceComesBack) {
  Start({.max_sequences = 4,
         .slot_memory = 100,
         .preempted_memory = 100,
         .kv_admission = KvAdmission::kReserve});
  auto stream = std::make_shared<EventStream>(4);  // that the client does not read
  GenerateRequest request;
  request.info.arrival = now_;
  request.prompt = {5, 5, 5};
  request.params.ignore_eos = true;
  scheduler_->Add(std::make_unique<GenerateSequence>(context_, 1000, request, 50, 1, stream));
  Run(10);
  EXPECT_EQ(scheduler_->stats().idle, 1);
  Client* next = Send(3, 5, "");
  Run(10);
  EXPECT_EQ(Tokens(next), 0u);
  now_ += 1h;
  Run(10);
  EXPECT_TRUE(next->got.finish.has_value());
  EXPECT_EQ(scheduler_->stats().preemptions, 0);
}

TEST_F(FairnessTest, LowPriorityIsServedUnderEndlessHighOnes) {
  Start({.max_sequences = 1, .slot_memory = 1000, .preempted_memory = 1000, .aging = 1s});
  Client* low = Send(3, 30, "", /*priority=*/-2);
  for (int i = 0; i < 60 && !low->got.finish; ++i) {
    Send(3, 10, "", 1);
    Run(10);
  }
  // Three priorities are three seconds of waiting; then it is the oldest of the highest level.
  EXPECT_TRUE(low->got.finish.has_value());
  EXPECT_GE(low->ended - low->got.finish->timings.total, Clock::time_point());
  EXPECT_LT(low->got.finish->timings.total, 6s);
}

TEST_F(FairnessTest, SlowReaderLendsItsSlot) {
  Start({.max_sequences = 1, .slot_memory = 100, .preempted_memory = 100});
  Client* slow = Send(3, 50, "", 0, /*capacity=*/4);
  while (scheduler_->Tick()) {
  }
  EXPECT_EQ(scheduler_->stats().idle, 1);
  EXPECT_EQ(scheduler_->running(), 1);  // no other request waits for the slot
  Client* fast = Send(3, 50, "");
  while (scheduler_->Tick()) {
  }
  fast->got.Drain(fast->stream.get());
  EXPECT_TRUE(fast->got.finish.has_value());
  EXPECT_EQ(scheduler_->running(), 0);
  EXPECT_EQ(scheduler_->stats().preempted, 1);
  EXPECT_EQ(scheduler_->states().preempted(), 100u);
  EXPECT_EQ(scheduler_->stats().preempted_bytes, 100u);
  EXPECT_EQ(scheduler_->stats().state_bytes, 0u);
  Run(100);
  EXPECT_EQ(slow->got.tokens, fast->got.tokens);
  EXPECT_EQ(scheduler_->states().preempted(), 0u);
}

}  // namespace
}  // namespace polysketch
