#include "tests/engine/simulation/simulation.h"

#include <algorithm>
#include <utility>

namespace polysketch::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kStall = 200ms;
constexpr auto kAging = 20ms;
constexpr auto kSlice = 5ms;

bool IsPrefix(const std::vector<int32_t>& part, const std::vector<int32_t>& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

std::unique_ptr<SequenceState> SimulatedModel::NewState() {
  if (random_->Uniform() < failing_allocations) return nullptr;
  return FakeModel::NewState();
}

void SimulatedModel::Step(const Batch& batch, float* hidden) {
  FakeModel::Step(batch, hidden);
  const auto tokens = std::ssize(batch.tokens());
  const double noise = random_->Uniform(1.0, 1.5);
  *now_ += std::chrono::microseconds(static_cast<int64_t>(
      noise * static_cast<double>(kStepTime.count()) * (1.0 + static_cast<double>(tokens) / 10)));
}

class Simulation::Observer : public EngineObserver {
 public:
  explicit Observer(Happened* happened) : happened_(happened) {}
  void OnDraft(int64_t, int64_t accepted) override { happened_->drafts_held += accepted; }

 private:
  Happened* const happened_;
};

Simulation::Simulation(uint64_t seed, const SimulatedRequests* requests)
    : random_(seed), requests_(*requests) {
  const bool growing = random_.Uniform() < 0.3;
  model_ = std::make_unique<SimulatedModel>(&random_, &now_, growing);
  if (random_.Uniform() < 0.3) model_->failing_allocations = random_.Uniform(0, 0.5);
  observer_ = std::make_unique<Observer>(&happened_);
  context_ = {.tokenizer = &tokenizer_,
              .vocab_size = kFakeVocab,
              .eos_ids = {kFakeEos},
              .max_step_tokens = SimulatedModel::kStepTokens,
              .observer = observer_.get(),
              .now = [this] { return now_; },
              .draft_tokens = static_cast<int>(random_.Int(0, 12))};
  if (random_.Uniform() < 0.4) {
    prefix_cache_ = std::make_unique<PrefixCache>(
        PrefixCacheOptions{.memory = static_cast<size_t>(random_.Int(500, 60000)),
                           .min_tokens = random_.Int(1, 20),
                           .every = random_.Int(0, 3) * kFakeBlock});
    context_.prefix_cache = prefix_cache_.get();
  }
  const auto slots = static_cast<int>(random_.Int(1, 8));
  // Some memory for growing states: a request may take 300 tokens, forks as many again.
  const size_t memory = growing ? static_cast<size_t>(random_.Int(7000, 20000))
                                : static_cast<size_t>(random_.Int(2, slots + 2)) * 100;
  const auto budget = random_.Uniform() < 0.7 ? std::chrono::microseconds(3000) : 0us;
  // Often less than is needed, so that states are dropped. A state of the model has at least 100
  // bytes.
  const size_t preempted = random_.Uniform() < 0.4
                               ? static_cast<size_t>(random_.Int(0, 2)) * (growing ? 3000 : 100)
                               : memory;
  options_ = {.max_sequences = slots,
              .slot_memory = memory,
              .preempted_memory = preempted,
              .stall_deadline = kStall,
              .step_budget = budget,
              .aging = kAging,
              .slice = kSlice};
  if (growing) {
    // From numbers of their own, so that each seed remains the world that it was.
    Random own(seed + (uint64_t{1} << 32));
    if (own.Uniform() < 0.3) options_.kv_admission = KvAdmission::kReserve;
    options_.growth_tokens = own.Int(1, 30);
    model_->on_step = [this](const Batch& batch) { CheckCharged(batch); };
  }
  options_.on_ending = [this](const Sequence& sequence) {
    for (auto& client : clients_) client->endings += client->id == sequence.id();
  };
  max_queue_ = static_cast<int>(random_.Int(1, 20));
  scheduler_ = std::make_unique<Scheduler>(model_.get(), context_, options_);
  OpenSessions();
}

void Simulation::OpenSessions() {
  if (random_.Uniform() < 0.4) return;
  SessionOptions options;
  options.memory = static_cast<size_t>(random_.Int(500, 5000));
  options.codec.limits = {{kFakeVocab, SimulatedRequests::kMaxTokens, true}, 10000};
  options.now = [this] { return now_; };
  options.date = [this] { return std::chrono::system_clock::time_point(now_.time_since_epoch()); };
  if (random_.Uniform() < 0.8) {
    store_ = std::make_unique<SimulatedStore>(&random_);
    if (random_.Uniform() < 0.5) store_->failing = random_.Uniform(0, 0.4);
    store_thread_.slowest = std::chrono::microseconds(random_.Int(10, 30'000));
    if (random_.Uniform() < 0.7) drains_ = random_.Uniform(0, 0.02);
    options.store = store_.get();
  }
  table_ = std::make_unique<SessionTable>(std::move(options));
  for (int64_t i = random_.Int(1, 8); i > 0; --i) {
    auto session = std::make_unique<Session>();
    session->turns =
        &requests_
             .sessions[static_cast<size_t>(random_.Int(0, std::ssize(requests_.sessions) - 1))];
    session->tenant = StrCat("tenant-", random_.Int(0, 3));
    session->durable = store_ != nullptr && random_.Uniform() < 0.5;
    sessions_.push_back(std::move(session));
  }
}

Simulation::~Simulation() { scheduler_.reset(); }

void Simulation::Note(uint64_t value) { trace_ = MixBits(trace_ ^ value) + value; }

void Simulation::Act(Client* client) {
  if (now_ >= client->leaves && !client->cancelled) {
    client->cancelled = true;
    if (client->submitted) {
      scheduler_->End(client->id, FinishReason::kCancelled, Status(Code::kCancelled, "left"));
    }
    client->next_act = now_;
  }
  if (!client->submitted || client->over) return;  // with the store, or refused
  // A connection tells of an end, however slow its reader is.
  if (now_ < client->next_act && client->endings == 0 && !settling_) return;
  client->next_act = now_ + (settling_ ? 0us : client->pace);
  if (client->feed != nullptr && client->fed < client->request->tokens.size()) {
    const auto& text = client->request->tokens;
    const size_t end = std::min(text.size(), client->fed + static_cast<size_t>(client->bite));
    client->feed->Push({text.begin() + static_cast<ptrdiff_t>(client->fed),
                        text.begin() + static_cast<ptrdiff_t>(end)});
    client->fed = end;
    if (end == text.size()) client->feed->Close();
  }
  const bool owed = client->stream->Full();
  Read(client, client->bite);
  if (owed) client->ready_since = now_;
}

void Simulation::Read(Client* client, int64_t most) {
  Event event;
  while (most-- > 0 && client->stream->TryPop(&event)) CheckEvent(client, event);
}

void Simulation::CheckEvent(Client* client, const Event& event) {
  if (client->got.finish) return Fail("request ", client->id, ": an event after its end");
  client->ready_since = now_;
  client->got.Add(event);
  Note(event.index());
  if (const auto* token = std::get_if<TokenEvent>(&event))
    Note(static_cast<uint64_t>(token->token));
  if (client->got.finish) OnFinish(client);
}

void Simulation::CheckEnd(const Client& client) {
  const FinishEvent& finish = *client.got.finish;
  const Collected& alone = client.request->alone;
  if (finish.status.ok()) {
    if (client.got.choices != alone.choices || client.got.echoed != alone.echoed ||
        client.got.scores != alone.scores || finish.matched_stop != alone.finish->matched_stop) {
      Fail("request ", client.id, " did not get what it gets alone");
    }
    return;
  }
  if (finish.reason == FinishReason::kError && model_->failing_allocations == 0 &&
      !(client.feed != nullptr && finish.status.code() == Code::kResourceExhausted &&
        options_.kv_admission == KvAdmission::kReserve)) {
    Fail("request ", client.id, ": ", finish.status.ToString());
  }
  if (finish.reason == FinishReason::kCancelled && !client.cancelled) {
    Fail("request ", client.id, " was cancelled without a Cancel");
  }
  if (finish.reason == FinishReason::kDeadline && client.info.deadline > now_) {
    Fail("request ", client.id, " ended before its deadline");
  }
  for (const auto& [index, choice] : client.got.choices) {
    const auto found = alone.choices.find(index);
    if (found == alone.choices.end() || !IsPrefix(choice.tokens, found->second.tokens)) {
      Fail("request ", client.id, " got tokens that it does not get alone");
    }
  }
}

// A state is charged before it grows.
void Simulation::CheckCharged(const Batch& batch) {
  size_t needed = 0;
  for (const Segment& segment : batch.segments())
    needed += model_->StateBytes(segment.state->position() + segment.rows);
  const size_t charged = scheduler_->states().reserved();
  if (needed > charged) Fail("a step takes ", needed, " bytes, charged are ", charged);
}

void Simulation::CheckBudgets() {
  const StatePool& states = scheduler_->states();
  const EngineStats counts = scheduler_->stats();
  happened_.preempted += counts.preempted_ready;
  if (counts.running > options_.max_sequences) Fail(counts.running, " sequences have a slot");
  if (states.reserved() > states.limit()) Fail(states.reserved(), " bytes of states");
  if (states.preempted() > states.preempted_limit())
    Fail(states.preempted(), " bytes of preempted states");
  if (counts.state_bytes > states.limit()) Fail("states hold ", counts.state_bytes, " bytes");
  if (counts.preempted_bytes > states.preempted_limit()) {
    Fail("preempted states hold ", counts.preempted_bytes, " bytes");
  }
}

// A request that owes nothing gets something within the time that all before it can take: each of
// these moves on with every step, or owes something and is ended by the stall deadline; and none
// can overtake it once it is of the highest level.
void Simulation::CheckNobodyStarves() {
  constexpr auto kOne =
      SimulatedModel::kLongestStep * (SimulatedRequests::kMaxTokens + 20) + kStall;
  const auto most = kAging * (kMaxPriority + 1) + kOne * 8 * (options_.max_sequences + max_queue_);
  for (const auto& client : clients_) {
    if (!client->submitted || client->endings > 0 || client->feed != nullptr) continue;
    if (client->stream->Full()) continue;
    if (now_ - client->ready_since > most) {
      Fail("request ", client->id, " got nothing for ",
           std::chrono::duration<double>(now_ - client->ready_since).count(), " s");
    }
  }
}

bool Simulation::Run(int ticks) {
  const double arrivals = random_.Uniform(0.02, 0.5);
  const int max_ticks = ticks + 100 * 1000;
  for (int tick = 0; error_.empty(); ++tick) {
    settling_ = tick >= ticks;
    if (!settling_ && random_.Uniform() < arrivals) Arrive();
    if (!settling_ && random_.Uniform() < drains_) scheduler_->MigrateAll();
    store_thread_.Run();
    for (auto& client : clients_) Act(client.get());
    std::erase_if(clients_, [](const auto& client) { return client->over; });
    const bool busy = scheduler_->Tick();
    Note(static_cast<uint64_t>((now_.time_since_epoch()).count()));
    CheckBudgets();
    CheckNobodyStarves();
    if (settling_ && clients_.empty()) break;
    if (tick > max_ticks) Fail(clients_.size(), " requests do not end");
    if (!busy) {
      // An idle sequence gives its slot to a preempted one that can continue. (Checked where all
      // sequences need equal memory; one that will fork needs more.)
      const bool equal =
          !model_->growing() && std::none_of(clients_.begin(), clients_.end(), [](const auto& c) {
            return c->submitted && c->request->params.best_of > 1;
          });
      if (equal && scheduler_->stats().preempted_ready > 0) {
        Fail("nothing was done although a sequence could continue");
      }
      const Clock::time_point next = scheduler_->NextDeadline();
      now_ = std::clamp(next, now_ + 100us, now_ + 5ms);
    }
  }
  const StatePool& states = scheduler_->states();
  if (scheduler_->size() > 0) {
    Fail("sequences are left in the scheduler");
  }
  if (states.reserved() + states.preempted() > 0) Fail("memory of states is left reserved");
  CheckSessions();
  happened_.preemptions = scheduler_->stats().preemptions;
  happened_.dropped = scheduler_->stats().dropped_states;
  if (model_->growing()) happened_.dropped_growing = happened_.dropped;
  if (table_ != nullptr) happened_.spills = table_->stats().spills;
  if (store_ != nullptr) happened_.store_failures = store_->failures;
  if (prefix_cache_ != nullptr) happened_.cache_hits = prefix_cache_->stats().hit_tokens;
  return error_.empty();
}

void Simulation::Happened::Add(const Happened& other) {
  requests += other.requests;
  for (int i = 0; i < 7; ++i) reasons[i] += other.reasons[i];
  preemptions += other.preemptions;
  preempted += other.preempted;
  dropped += other.dropped;
  dropped_growing += other.dropped_growing;
  forks += other.forks;
  drafts_held += other.drafts_held;
  refused += other.refused;
  turns += other.turns;
  contended += other.contended;
  store_failures += other.store_failures;
  spills += other.spills;
  resumed += other.resumed;
  cache_hits += other.cache_hits;
}

}  // namespace polysketch::testing
