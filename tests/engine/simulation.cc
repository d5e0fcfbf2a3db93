#include "tests/engine/simulation.h"

#include <algorithm>
#include <utility>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/score_sequence.h"

namespace polysketch::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kStall = 200ms;
constexpr auto kAging = 20ms;
constexpr int kMostPriority = 2;
constexpr int kMostTokens = 40;  // of an output

bool IsPrefix(const std::vector<int32_t>& part, const std::vector<int32_t>& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

std::unique_ptr<SequenceState> SimulatedModel::NewState() {
  if (random_->Uniform() < failing_allocations) return nullptr;
  return FakeModel::NewState();
}

void SimulatedModel::Step(std::span<const StepSegment> segments, float* hidden) {
  FakeModel::Step(segments, hidden);
  int64_t tokens = 0;
  for (const StepSegment& segment : segments) tokens += std::ssize(segment.tokens);
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

// Somebody with one request.
struct Simulation::Client {
  RequestId id = 0;
  const SimulatedRequest* request = nullptr;
  std::shared_ptr<EventStream> stream;
  std::shared_ptr<TokenFeed> feed;
  Clock::time_point arrival, deadline;
  Clock::time_point ready_since;  // since when it has owed nothing
  Clock::time_point next_act;
  std::chrono::microseconds pace{0};  // between two acts
  int64_t bite = 0;                   // events or input tokens in one act
  size_t fed = 0;
  Clock::time_point leaves = Clock::time_point::max();
  bool cancelled = false;
  Collected got;
  int endings = 0;
};

Simulation::Simulation(uint64_t seed, const std::vector<SimulatedRequest>* requests)
    : random_(seed), requests_(*requests) {
  const bool growing = random_.Uniform() < 0.3;
  model_ = std::make_unique<SimulatedModel>(&random_, &now_, growing);
  if (random_.Uniform() < 0.3) model_->failing_allocations = random_.Uniform(0, 0.5);
  observer_ = std::make_unique<Observer>(&happened_);
  context_ = {.tokenizer = &tokenizer_,
              .vocab_size = kFakeVocab,
              .eos_id = kFakeEos,
              .max_step_tokens = SimulatedModel::kStepTokens,
              .observer = observer_.get(),
              .now = [this] { return now_; },
              .draft_tokens = static_cast<int>(random_.Int(0, 12))};
  const auto slots = static_cast<int>(random_.Int(1, 8));
  // Some memory for growing states: a request may take 300 tokens, forks as many again.
  const size_t memory = growing ? static_cast<size_t>(random_.Int(7000, 20000))
                                : static_cast<size_t>(random_.Int(2, slots + 2)) * 100;
  const auto budget = random_.Uniform() < 0.7 ? std::chrono::microseconds(3000) : 0us;
  options_ = {.max_sequences = slots,
              .state_memory = memory,
              .parked_memory = random_.Uniform() < 0.2 ? 0 : memory,
              .stall_deadline = kStall,
              .step_budget = budget,
              .aging = kAging};
  options_.on_ending = [this](const Sequence& sequence) {
    for (auto& client : clients_) client->endings += client->id == sequence.id();
  };
  max_queue_ = static_cast<int>(random_.Int(1, 20));
  scheduler_ = std::make_unique<Scheduler>(model_.get(), context_, options_);
}

Simulation::~Simulation() { scheduler_.reset(); }

void Simulation::Note(uint64_t value) { trace_ = MixBits(trace_ ^ value) + value; }

void Simulation::Submit() {
  const auto alive = std::count_if(clients_.begin(), clients_.end(),
                                   [](const auto& client) { return client->endings == 0; });
  if (alive >= options_.max_sequences + max_queue_) {
    ++happened_.refused;
    return;
  }
  auto client = std::make_unique<Client>();
  client->id = next_id_++;
  client->request = &requests_[static_cast<size_t>(random_.Int(0, std::ssize(requests_) - 1))];
  client->arrival = client->next_act = client->ready_since = now_;
  client->deadline = Clock::time_point::max();
  if (random_.Uniform() < 0.1) {
    client->deadline = now_ + std::chrono::microseconds(random_.Int(0, 200'000));
  }
  const auto capacity = static_cast<size_t>(random_.Uniform() < 0.5 ? random_.Int(1, 8) : 1000);
  client->stream = std::make_shared<EventStream>(capacity, [this] { return now_; });
  client->bite = random_.Int(1, 30);
  if (random_.Uniform() < 0.4) client->pace = std::chrono::microseconds(random_.Int(100, 30'000));
  if (random_.Uniform() < 0.15) {
    client->leaves = now_ + std::chrono::microseconds(random_.Int(0, 300'000));
  }
  if (random_.Uniform() < 0.05) client->next_act += 1h;  // reads nothing, ever

  RequestInfo info{.id = "",
                   .traceparent = "",
                   .tenant = StrCat("tenant-", random_.Int(0, 3)),
                   .arrival = now_,
                   .deadline = client->deadline,
                   .priority = static_cast<int>(random_.Int(0, kMostPriority))};
  ++happened_.requests;
  Note(client->id);
  const SimulatedRequest& request = *client->request;
  std::unique_ptr<Sequence> sequence;
  if (request.score) {
    client->feed = std::make_shared<TokenFeed>(100);
    sequence = std::make_unique<ScoreSequence>(context_, client->id,
                                               ScoreRequest{info, client->feed}, client->stream);
  } else {
    happened_.forks += request.params.best_of - 1;
    sequence = std::make_unique<GenerateSequence>(
        context_, client->id, GenerateRequest{info, request.tokens, request.params},
        *request.params.max_tokens, *request.params.sampling.seed, client->stream);
  }
  clients_.push_back(std::move(client));
  scheduler_->Add(std::move(sequence));
}

void Simulation::Act(Client* client) {
  if (now_ >= client->leaves && !client->cancelled) {
    client->cancelled = true;
    scheduler_->End(client->id, FinishReason::kCancelled, Status(Code::kCancelled, "left"));
    client->next_act = now_;
  }
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
  if (client->got.finish) return Fail("request ", client->id, ": an event behind its end");
  client->ready_since = now_;
  client->got.Add(event);
  Note(event.index());
  if (const auto* token = std::get_if<TokenEvent>(&event))
    Note(static_cast<uint64_t>(token->token));
  if (client->got.finish) CheckEnd(*client);
}

void Simulation::CheckEnd(const Client& client) {
  const FinishEvent& finish = *client.got.finish;
  const Collected& alone = client.request->alone;
  Note(static_cast<uint64_t>(finish.reason));
  ++happened_.reasons[static_cast<int>(finish.reason)];
  if (client.endings != 1) Fail("request ", client.id, " ended ", client.endings, " times");
  if (finish.status.ok()) {
    if (client.got.choices != alone.choices || client.got.echoed != alone.echoed ||
        client.got.scores != alone.scores || finish.matched_stop != alone.finish->matched_stop) {
      Fail("request ", client.id, " did not get what it gets alone");
    }
    return;
  }
  if (finish.reason == FinishReason::kError && model_->failing_allocations == 0 &&
      !(client.feed != nullptr && finish.status.code() == Code::kResourceExhausted)) {
    Fail("request ", client.id, ": ", finish.status.ToString());
  }
  if (finish.reason == FinishReason::kCancelled && !client.cancelled) {
    Fail("request ", client.id, " was cancelled by nobody");
  }
  if (finish.reason == FinishReason::kDeadline && client.deadline > now_) {
    Fail("request ", client.id, " ended before its deadline");
  }
  for (const auto& [index, choice] : client.got.choices) {
    const auto found = alone.choices.find(index);
    if (found == alone.choices.end() || !IsPrefix(choice.tokens, found->second.tokens)) {
      Fail("request ", client.id, " got tokens that it does not get alone");
    }
  }
}

void Simulation::CheckBudgets() {
  const StatePool& states = scheduler_->states();
  const Scheduler::Counts counts = scheduler_->counts();
  happened_.preempted += counts.able;
  if (counts.running > options_.max_sequences) Fail(counts.running, " sequences have a slot");
  if (states.reserved() > states.limit()) Fail(states.reserved(), " bytes of states");
  if (states.parked() > states.parked_limit()) Fail(states.parked(), " bytes of parked states");
  if (counts.state_bytes > states.limit() + states.parked_limit()) {
    Fail("states hold ", counts.state_bytes, " bytes");
  }
}

// A request that owes nothing gets something within the time that all before it can take: each of
// these moves on with every step, or owes something and is ended by the stall deadline; and none
// can overtake it once it is of the highest level.
void Simulation::CheckNobodyStarves() {
  constexpr auto kOne = SimulatedModel::kLongestStep * (kMostTokens + 20) + kStall;
  const auto most = kAging * (kMostPriority + 1) + kOne * 8 * (options_.max_sequences + max_queue_);
  for (const auto& client : clients_) {
    if (client->stream->Full() || client->feed != nullptr) continue;
    if (now_ - client->ready_since > most) {
      Fail("request ", client->id, " got nothing for ",
           std::chrono::duration<double>(now_ - client->ready_since).count(), " s");
    }
  }
}

bool Simulation::Run(int ticks) {
  const double arrivals = random_.Uniform(0.02, 0.5);
  const int most_ticks = ticks + 100 * 1000;
  for (int tick = 0; error_.empty(); ++tick) {
    settling_ = tick >= ticks;
    if (!settling_ && random_.Uniform() < arrivals) Submit();
    for (auto& client : clients_) Act(client.get());
    std::erase_if(clients_, [](const auto& client) { return client->got.finish.has_value(); });
    const bool busy = scheduler_->Tick();
    Note(static_cast<uint64_t>((now_.time_since_epoch()).count()));
    CheckBudgets();
    CheckNobodyStarves();
    if (settling_ && clients_.empty()) break;
    if (tick > most_ticks) Fail(clients_.size(), " requests do not end");
    if (!busy) {
      // A slot that nobody uses goes to whoever could go on: they change places. (Where all need
      // the same; one that will fork needs more.)
      const bool equal = !model_->growing() &&
                         std::none_of(clients_.begin(), clients_.end(),
                                      [](const auto& c) { return c->request->params.best_of > 1; });
      if (equal && scheduler_->counts().able > 0) {
        Fail("nothing was done although a sequence could go on");
      }
      const Clock::time_point next = scheduler_->NextDeadline();
      now_ = std::clamp(next, now_ + 100us, now_ + 5ms);
    }
  }
  const StatePool& states = scheduler_->states();
  if (scheduler_->size() > 0) {
    Fail("sequences are left behind");
  }
  if (states.reserved() + states.parked() > 0) Fail("memory of states is left reserved");
  happened_.parkings = scheduler_->parkings();
  return error_.empty();
}

void Simulation::Happened::Add(const Happened& other) {
  requests += other.requests;
  for (int i = 0; i < 6; ++i) reasons[i] += other.reasons[i];
  parkings += other.parkings;
  preempted += other.preempted;
  forks += other.forks;
  drafts_held += other.drafts_held;
  refused += other.refused;
}

// In a scheduler that runs nothing else, token by token, without drafts.
static Collected RunAlone(const SimulatedRequest& request) {
  FakeModel model;
  FakeTokenizer tokenizer;
  EngineObserver observer;
  SequenceContext context;
  context.tokenizer = &tokenizer;
  context.vocab_size = kFakeVocab;
  context.eos_id = kFakeEos;
  context.max_step_tokens = 32;
  context.observer = &observer;
  Scheduler scheduler(&model, context, {.max_sequences = 1, .state_memory = 200});
  const auto stream = std::make_shared<EventStream>(100000);
  if (request.score) {
    const auto feed = std::make_shared<TokenFeed>(10000);
    feed->Push(request.tokens);
    feed->Close();
    scheduler.Add(std::make_unique<ScoreSequence>(context, 1, ScoreRequest{{}, feed}, stream));
  } else {
    scheduler.Add(std::make_unique<GenerateSequence>(
        context, 1, GenerateRequest{{}, request.tokens, request.params}, *request.params.max_tokens,
        *request.params.sampling.seed, stream));
  }
  while (scheduler.Tick()) {
  }
  Collected got;
  got.Drain(stream.get());
  return got;
}

std::vector<SimulatedRequest> SimulatedRequests(int count) {
  Random random(2026);
  std::vector<SimulatedRequest> requests;
  for (int i = 0; i < count; ++i) {
    SimulatedRequest request;
    // Prompts that repeat themselves give drafts something to go by.
    const int64_t size = random.Uniform() < 0.2 ? random.Int(100, 250) : random.Int(1, 30);
    const int64_t period = random.Int(1, 40);
    for (int64_t t = 0; t < size; ++t) {
      request.tokens.push_back(
          static_cast<int32_t>(t < period ? random.Int(2, kFakeVocab - 1)
                                          : request.tokens[static_cast<size_t>(t - period)]));
    }
    request.score = random.Uniform() < 0.2;
    GenerateParams& params = request.params;
    params.sampling.seed = static_cast<uint64_t>(i);
    params.max_tokens = static_cast<int32_t>(random.Int(0, kMostTokens));
    params.ignore_eos = random.Uniform() < 0.7;
    if (random.Uniform() < 0.5) params.sampling.temperature = 0;
    if (random.Uniform() < 0.2) params.sampling.frequency_penalty = 0.7f;
    if (random.Uniform() < 0.2) params.stop = {"Q", "AB"};
    if (random.Uniform() < 0.2) params.logprobs = 2;
    if (random.Uniform() < 0.2) params.echo = true;
    if (random.Uniform() < 0.3 && *params.max_tokens > 0) {
      params.n = static_cast<int32_t>(random.Int(1, 3));
      params.best_of = params.n + static_cast<int32_t>(random.Int(0, 2));
    }
    // A bias makes outputs repeat themselves.
    if (random.Uniform() < 0.5) {
      params.sampling.logit_bias = {{7, 6.0f}, {9, 5.0f}};
    }
    request.alone = RunAlone(request);
    PS_CHECK(request.alone.finish && request.alone.finish->status.ok());
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace polysketch::testing
