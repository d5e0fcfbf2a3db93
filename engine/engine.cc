#include "engine/engine.h"

#include <atomic>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/start_thread.h"
#include "base/thread_name.h"
#include "engine/engine_memory.h"
#include "engine/mailbox.h"
#include "engine/sampler/random.h"
#include "engine/sampler/sampling_params.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/score_sequence.h"
#include "engine/snapshot/check.h"
#include "engine/speculation/model_drafter.h"

namespace polysketch {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

class EngineImpl : public Engine {
 public:
  EngineImpl(LanguageModel* model, const Tokenizer* tokenizer, const EngineOptions& options)
      : options_(options),
        model_(model),
        context_{.tokenizer = tokenizer,
                 .vocab_size = model->vocab_size(),
                 .eos_ids = options.eos_ids,
                 .context_limit = options.context_limit,
                 .max_step_tokens = std::min(options.max_step_tokens, model->max_step_tokens()),
                 .observer = options.observer != nullptr ? options.observer : &silent_observer_,
                 .draft_tokens = options.draft_tokens,
                 .new_drafter = NewDrafter(),
                 .prefix_cache = options.prefix_cache,
                 .far_heads = model->FarHeads()},
        seed_base_(RandomSeed()),
        memory_(model, options_),
        scheduler_(model, context_,
                   {.max_sequences = options.max_sequences,
                    .slot_memory = memory_.slot_memory(),
                    .preempted_memory = memory_.preempted_memory(),
                    .kv_admission = options.kv_admission,
                    .stall_deadline = options.stall_deadline,
                    .step_budget = options.step_budget,
                    .sampling_threads = options.sampling_threads,
                    .batch_notifications = options.batch_notifications,
                    .on_admitted = [this](const Sequence& sequence) { OnAdmitted(sequence); },
                    .on_ending = [this](const Sequence& sequence) { OnEnding(sequence); }}) {
    Publish();
  }

  ~EngineImpl() override {
    mailbox_->Post([](Mailbox::Inbox* inbox) { inbox->stop = true; });
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    PS_RETURN_IF_ERROR(memory_.Check());
    PS_RETURN_IF_ERROR(memory_.Reserve());
    thread_ = StartThread([this] {
      NameThread(kEngineThreadName);
      Run();
    });
    return Status();
  }

  Status CheckLength(const GenerateRequest& request) const override {
    return memory_.MaxTokens(request).status();
  }

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<EventStream> stream) override {
    PS_RETURN_IF_ERROR(Check(&request));
    PS_ASSIGN_OR_RETURN(int64_t max_tokens, memory_.MaxTokens(request));
    if (request.params.grammar) max_tokens = std::min<int64_t>(max_tokens, kMaxGrammarTokens);
    const RequestId id = NextId();
    const uint64_t seed = request.params.sampling.seed.value_or(MixBits(seed_base_ + id));
    stream->SetOnDrained([mailbox = mailbox_] { mailbox->Wake(); });
    return Enqueue(std::make_unique<GenerateSequence>(context_, id, std::move(request), max_tokens,
                                                      seed, std::move(stream)));
  }

  Result<RequestId> Submit(ScoreRequest request, std::shared_ptr<EventStream> stream) override {
    PS_CHECK(request.feed != nullptr);
    if (request.far_mass) PS_RETURN_IF_ERROR(CheckFarMass());
    if (request.start != nullptr) {
      PS_RETURN_IF_ERROR(CheckStart(*request.start));
      PS_RETURN_IF_ERROR(memory_.CheckStart(*request.start));
      PS_CHECK(!request.start->generation) << "a score cannot resume a completion";
    }
    const RequestId id = NextId();
    stream->SetOnDrained([mailbox = mailbox_] { mailbox->Wake(); });
    request.feed->SetOnData([mailbox = mailbox_] { mailbox->Wake(); });
    return Enqueue(
        std::make_unique<ScoreSequence>(context_, id, std::move(request), std::move(stream)));
  }

  void Cancel(RequestId id) override {
    mailbox_->Post([id](Mailbox::Inbox* inbox) { inbox->cancelled.push_back(id); });
  }

  void MigrateAll() override {
    mailbox_->Post([](Mailbox::Inbox* inbox) { inbox->migrate = true; });
  }

  bool Drain(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mailbox_->mutex);
    mailbox_->draining = true;
    const auto none_left = [this] { return mailbox_->unfinished == 0; };
    if (mailbox_->idle.wait_for(lock, timeout, none_left)) return true;
    mailbox_->inbox.end_all = ShuttingDown();
    mailbox_->WakeLocked();
    mailbox_->idle.wait(lock, none_left);
    return false;
  }

  EngineStats stats() const override {
    std::lock_guard lock(mailbox_->mutex);
    EngineStats stats = mailbox_->stats;
    stats.waiting += static_cast<int>(mailbox_->inbox.added.size());
    stats.given_up = mailbox_->given_up;
    stats.working = mailbox_->working;
    stats.turns = mailbox_->turns;
    return stats;
  }

 private:
  static Status ShuttingDown() {
    return Unavailable("the server is shutting down").WithReason(Reason::kDraining);
  }

  std::function<std::unique_ptr<Drafter>()> NewDrafter() {
    if (options_.draft_model == nullptr) return {};
    return [this] {
      return std::make_unique<ModelDrafter>(options_.draft_model, memory_.draft_states(),
                                            options_.draft_context_limit);
    };
  }

  RequestId NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  Status CheckStart(const Snapshot& start) const {
    return CheckSnapshot(
        start, {context_.vocab_size, options_.max_new_tokens, context_.tokenizer != nullptr});
  }

  Status CheckFarMass() const {
    const std::vector<int>& heads = context_.far_heads;
    if (heads.empty()) {
      return Status(Code::kUnimplemented,
                    "far_mass: expected a server whose backend computes on the CPU");
    }
    if (std::ranges::any_of(heads, [](int n) { return n > 0; })) return Status();
    return FailedPrecondition(
        "far_mass: expected a model with a layer that has a far part, found layers of KV kinds");
  }

  // Checks that the request can be submitted. Gives a request that resumes the parameters of its
  // Generation.
  Status Check(GenerateRequest* request) const {
    const bool has_tokenizer = context_.tokenizer != nullptr;
    const Snapshot* start = request->start.get();
    if (start != nullptr) PS_RETURN_IF_ERROR(CheckStart(*start));
    if (start != nullptr && start->generation) {
      if (!request->prompt.empty()) {
        return InvalidArgument("prompt: expected none with a completion that is resumed");
      }
      request->params = start->generation->params;
    } else if (start == nullptr || !request->prompt.empty()) {
      PS_RETURN_IF_ERROR(
          ValidatePrompt(request->prompt, context_.vocab_size, options_.max_prompt_tokens));
    }
    PS_RETURN_IF_ERROR(ValidateGenerate(request->params, context_.vocab_size,
                                        options_.max_new_tokens, has_tokenizer));
    PS_CHECK(request->params.grammar.has_value() == (request->grammar != nullptr));
    const int32_t choices = request->params.best_of;
    if (request->keep && choices > 1) {
      return InvalidArgument("n: expected one choice of a sequence that is kept, found ", choices);
    }
    if (choices > MaxSlots()) {
      return InvalidArgument("best_of: expected at most ", MaxSlots(),
                             " (max_sequences and max_queue), found ", choices);
    }
    return Status();
  }

  // Maximum number of slots that unfinished requests can use. Running and waiting requests count
  // together, so that a burst for which slots are free is not refused because it was not admitted
  // yet.
  int64_t MaxSlots() const { return int64_t{options_.max_sequences} + options_.max_queue; }

  Result<RequestId> Enqueue(std::unique_ptr<Sequence> sequence) {
    const RequestId id = sequence->id();
    const int64_t tokens = sequence->UnprocessedInput();
    std::lock_guard lock(mailbox_->mutex);
    if (mailbox_->draining)
      return Unavailable("the server is draining and takes no new requests")
          .WithReason(Reason::kDraining);
    PS_RETURN_IF_ERROR(TakePlace({.id = id,
                                  .principal = sequence->principal(),
                                  .priority = sequence->priority(),
                                  .slots = sequence->slots(),
                                  .tokens = tokens}));
    ++mailbox_->unfinished;
    mailbox_->inbox.added_tokens += tokens;
    mailbox_->inbox.added.push_back(std::move(sequence));
    mailbox_->WakeLocked();
    return id;
  }

  // The caller holds the mailbox's mutex.
  Status TakePlace(const QueuePlaces::Request& request) {
    Mailbox& mailbox = *mailbox_;
    const Result<std::vector<RequestId>> given_up = mailbox.places.Add(request);
    if (!given_up.ok())
      return Status(given_up.status()).WithRetryAfter(mailbox.retry_delay.OnRefused());
    for (const RequestId id : *given_up) {
      mailbox.inbox.given_up.emplace(
          id, ResourceExhausted("the queue is full, and a client with fewer requests got the place "
                                "of this one; try again later")
                  .WithReason(Reason::kQueueFull)
                  .WithRetryAfter(mailbox.retry_delay.OnRefused()));
    }
    mailbox.given_up += std::ssize(*given_up);
    return Status();
  }

  // --- the engine thread ---

  void OnAdmitted(const Sequence& sequence) {
    std::lock_guard lock(mailbox_->mutex);
    mailbox_->places.OnAdmitted(sequence.id());
  }

  // Called before a FinishEvent is pushed, so that its reader finds the slots free.
  void OnEnding(const Sequence& sequence) {
    std::lock_guard lock(mailbox_->mutex);
    mailbox_->places.Remove(sequence.id());
    mailbox_->retry_delay.OnEnded(Clock::now());
  }

  void Run() {
    for (bool busy = false, stop = false; !stop;) {
      Mailbox::Inbox inbox = mailbox_->Take(busy, scheduler_.NextDeadline());
      stop = inbox.stop;
      if (stop) inbox.end_all = ShuttingDown();
      Apply(std::move(inbox));
      busy = scheduler_.Tick();
      if (const Status status = model_->status(); !status.ok()) EndAfterFailure(status);
      Publish();
    }
  }

  void Apply(Mailbox::Inbox inbox) {
    for (auto& sequence : inbox.added) scheduler_.Add(std::move(sequence));
    scheduler_.EndWaiting(inbox.given_up);
    scheduler_.End(inbox.cancelled, FinishReason::kCancelled,
                   Status(Code::kCancelled, "the request was cancelled"));
    if (inbox.migrate) scheduler_.MigrateAll();
    if (inbox.end_all) scheduler_.EndAll(FinishReason::kCancelled, *inbox.end_all);
  }

  // Called when the device has failed: all states are lost.
  void EndAfterFailure(const Status& status) {
    {
      std::lock_guard lock(mailbox_->mutex);
      mailbox_->draining = true;
    }
    scheduler_.EndAll(FinishReason::kError, status);
    if (!std::exchange(failure_reported_, true) && options_.on_device_failure) {
      options_.on_device_failure(status);
    }
  }

  void Publish() {
    EngineStats stats = scheduler_.stats();
    if (const StatePool* drafts = memory_.draft_states()) {
      stats.state_bytes += drafts->reserved();
      stats.state_bytes_limit += drafts->limit();
    }
    std::lock_guard lock(mailbox_->mutex);
    mailbox_->stats = stats;
    mailbox_->unfinished = scheduler_.size() + static_cast<int>(mailbox_->inbox.added.size());
    if (mailbox_->unfinished == 0) mailbox_->idle.notify_all();
  }

  EngineObserver silent_observer_;
  const EngineOptions options_;
  const LanguageModel* const model_;
  bool failure_reported_ = false;  // engine thread
  const SequenceContext context_;
  const uint64_t seed_base_;
  EngineMemory memory_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>(
      QueuePlaces::Limits{options_.max_sequences, options_.max_queue, options_.max_queue_tokens});
  std::atomic<RequestId> next_id_{1};
  Scheduler scheduler_;  // engine thread
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(LanguageModel* model, const Tokenizer* tokenizer,
                                               const EngineOptions& options) {
  PS_RETURN_IF_ERROR(CheckOptions(options, *model, tokenizer));
  PS_RETURN_IF_ERROR(CheckForwardPass(model));
  auto engine = std::make_unique<EngineImpl>(model, tokenizer, options);
  PS_RETURN_IF_ERROR(engine->Start());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace polysketch
