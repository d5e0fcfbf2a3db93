#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "engine/sampler/random.h"
#include "engine/sampler/sampling_params.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/retry_delay.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/score_sequence.h"
#include "engine/snapshot/check.h"
#include "engine/speculation/model_drafter.h"

namespace polysketch {
namespace {

constexpr size_t kKvStateMemory = size_t{4} << 30;

// What other threads leave for the engine thread. Shared with the callbacks of streams and feeds,
// which may outlive the engine.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable wake;  // the engine thread waits for `woken`
  std::condition_variable idle;  // Drain waits for unfinished == 0

  // All guarded by mutex.
  bool woken = false;
  bool stop = false;
  bool draining = false;
  bool migrate = false;
  std::vector<std::unique_ptr<Sequence>> added;
  std::vector<RequestId> cancelled;
  std::optional<Status> end_all;
  int places = 0;  // of requests submitted and not yet ending: what the bound of the queue counts
  int64_t added_tokens = 0;  // prompts of `added`
  RetryDelay retry_delay;
  int unfinished = 0;  // submitted, FinishEvent not yet pushed
  EngineStats stats;

  void Wake() {
    std::lock_guard lock(mutex);
    woken = true;
    wake.notify_one();
  }
};

Status CheckOptions(const EngineOptions& options, const LanguageModel& model,
                    const ModelConfig& config, const Tokenizer* tokenizer) {
  if (options.max_sequences < 1) {
    return InvalidArgument("max_sequences: expected at least 1, found ", options.max_sequences);
  }
  if (options.max_queue < 0)
    return InvalidArgument("max_queue: expected 0 or more, found ", options.max_queue);
  // Room for a token of every decoding sequence, and for one of a prompt beside them.
  const int step_tokens = std::min(options.max_step_tokens, model.max_step_tokens());
  if (step_tokens <= options.max_sequences) {
    return InvalidArgument("max_step_tokens: expected more than max_sequences (",
                           options.max_sequences, "), found ", step_tokens);
  }
  if (options.max_prompt_tokens < 1) {
    return InvalidArgument("max_prompt_tokens: expected at least 1, found ",
                           options.max_prompt_tokens);
  }
  if (options.max_new_tokens < 1) {
    return InvalidArgument("max_new_tokens: expected at least 1, found ", options.max_new_tokens);
  }
  if (options.stall_deadline.count() < 1 || options.stall_deadline > std::chrono::hours(24 * 365)) {
    return InvalidArgument("stall_deadline: expected 1 ms to a year, found ",
                           options.stall_deadline.count(), " ms");
  }
  if (options.sampling_threads < 1) {
    return InvalidArgument("sampling_threads: expected at least 1, found ",
                           options.sampling_threads);
  }
  if (options.draft_tokens < 0 || options.draft_tokens > kMaxDraftTokens) {
    return InvalidArgument("draft_tokens: expected 0 to ", kMaxDraftTokens, ", found ",
                           options.draft_tokens);
  }
  if (options.draft_model != nullptr && options.draft_model->vocab_size() != model.vocab_size()) {
    return FailedPrecondition("the draft model: expected vocab_size ", model.vocab_size(),
                              " as the model has, found ", options.draft_model->vocab_size());
  }
  if (config.vocab_size != model.vocab_size()) {
    return FailedPrecondition("config.json: expected vocab_size ", model.vocab_size(), ", found ",
                              config.vocab_size);
  }
  if (tokenizer != nullptr && tokenizer->vocab_size() != model.vocab_size()) {
    return FailedPrecondition("tokenizer.model: expected ", model.vocab_size(),
                              " pieces as the model has, found ", tokenizer->vocab_size());
  }
  return Status();
}

// A few tokens as a prompt and one more as a decode step.
Status ProveForwardPass(LanguageModel* model) {
  const int length = std::min(8, model->max_step_tokens());
  std::vector<int32_t> tokens;
  for (int i = 0; i <= length; ++i) tokens.push_back(i * 37 % model->vocab_size());
  const auto width = static_cast<size_t>(model->hidden_size());
  const auto vocab = static_cast<size_t>(model->vocab_size());
  std::vector<float> hidden(static_cast<size_t>(length) * width);
  std::vector<float> logits(static_cast<size_t>(length) * vocab);
  const auto state = model->NewState();
  const auto run = [&](std::span<const int32_t> segment) {
    const auto rows = static_cast<int64_t>(segment.size());
    model->Step(OneSegment(state.get(), segment, OutputRows::kAll), hidden.data());
    model->Logits(hidden.data(), rows, logits.data());
    return std::all_of(logits.begin(), logits.begin() + rows * model->vocab_size(),
                       [](float x) { return std::isfinite(x); });
  };
  const std::span<const int32_t> all(tokens);
  PS_RETURN_IF_ERROR(model->status());  // of loading
  const bool finite = run(all.first(static_cast<size_t>(length))) && run(all.last(1));
  PS_RETURN_IF_ERROR(model->status());
  if (!finite) {
    return FailedPrecondition(
        "the model's first forward pass gave logits that are not finite: its weights are damaged");
  }
  return Status();
}

class EngineImpl : public Engine {
 public:
  EngineImpl(LanguageModel* model, const ModelConfig& config, const Tokenizer* tokenizer,
             const EngineOptions& options)
      : options_(options),
        model_(model),
        context_{.tokenizer = tokenizer,
                 .vocab_size = model->vocab_size(),
                 .eos_id = config.eos_id,
                 .max_step_tokens = std::min(options.max_step_tokens, model->max_step_tokens()),
                 .observer = options.observer != nullptr ? options.observer : &silent_observer_,
                 .draft_tokens = options.draft_tokens,
                 .new_drafter = NewDrafter(),
                 .prefix_cache = options.prefix_cache},
        seed_base_(DrawSeedBase()),
        limits_(model, StateMemory(model, options), 0),
        draft_states_(NewDraftStates()),
        scheduler_(model, context_,
                   {.max_sequences = options.max_sequences,
                    .slot_memory = limits_.limit(),
                    .preempted_memory = PreemptedMemory(),
                    .stall_deadline = options.stall_deadline,
                    .step_budget = options.step_budget,
                    .sampling_threads = options.sampling_threads,
                    .batch_notifications = options.batch_notifications,
                    .on_ending = [this](const Sequence& sequence) { OnEnding(sequence); }}) {
    mailbox_->stats.state_bytes_limit =
        limits_.limit() + (draft_states_ ? draft_states_->limit() : 0);
    mailbox_->stats.preempted_bytes_limit = PreemptedMemory();
  }

  ~EngineImpl() override {
    {
      std::lock_guard lock(mailbox_->mutex);
      mailbox_->stop = true;
    }
    mailbox_->Wake();
    if (thread_.joinable()) thread_.join();
  }

  void Start() {
    thread_ = std::thread([this] {
      NameThread(kEngineThreadName);
      Run();
    });
  }

  // What states that grow may take together; 0 for the others, which are all there.
  size_t GrowingMemory() const {
    return limits_.growing() ? limits_.limit() + PreemptedMemory() : 0;
  }
  size_t GrowingDraftMemory() const {
    return draft_states_ && draft_states_->growing() ? draft_states_->limit() : 0;
  }
  // Whether one state fits at all.
  Status CheckStateMemory() const {
    if (limits_.TokensThatFit(limits_.limit()) > 0) return Status();
    return InvalidArgument("slot_memory: expected at least the ", limits_.BytesFor(1),
                           " bytes of one state, found ", limits_.limit());
  }

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<EventStream> stream) override {
    const Generation* resumed = nullptr;
    if (request.start != nullptr) {
      PS_RETURN_IF_ERROR(CheckSnapshot(
          *request.start,
          {context_.vocab_size, options_.max_new_tokens, context_.tokenizer != nullptr}));
      if (request.start->generation) resumed = &*request.start->generation;
    }
    if (resumed != nullptr) {
      if (!request.prompt.empty()) {
        return InvalidArgument("prompt: expected none with a completion that is resumed");
      }
      request.params = resumed->params;
    } else if (request.start == nullptr || !request.prompt.empty()) {
      PS_RETURN_IF_ERROR(
          ValidatePrompt(request.prompt, context_.vocab_size, options_.max_prompt_tokens));
    }
    PS_RETURN_IF_ERROR(ValidateGenerate(request.params, context_.vocab_size,
                                        options_.max_new_tokens, context_.tokenizer != nullptr));
    if (request.keep && request.params.best_of > 1) {
      return InvalidArgument("n: expected one choice of a sequence that is kept, found ",
                             request.params.best_of);
    }
    PS_ASSIGN_OR_RETURN(int64_t max_tokens, MaxTokens(request));
    const RequestId id = NextId();
    uint64_t seed = request.params.sampling.seed.value_or(MixBits(seed_base_ + id));
    if (resumed != nullptr) {
      max_tokens = resumed->max_tokens;
      seed = resumed->seed;
    }
    stream->SetOnDrained([mailbox = mailbox_] { mailbox->Wake(); });
    return Enqueue(std::make_unique<GenerateSequence>(context_, id, std::move(request), max_tokens,
                                                      seed, std::move(stream)));
  }

  Result<RequestId> Submit(ScoreRequest request, std::shared_ptr<EventStream> stream) override {
    PS_CHECK(request.feed != nullptr);
    const RequestId id = NextId();
    stream->SetOnDrained([mailbox = mailbox_] { mailbox->Wake(); });
    request.feed->SetOnData([mailbox = mailbox_] { mailbox->Wake(); });
    return Enqueue(
        std::make_unique<ScoreSequence>(context_, id, std::move(request), std::move(stream)));
  }

  void Cancel(RequestId id) override {
    {
      std::lock_guard lock(mailbox_->mutex);
      mailbox_->cancelled.push_back(id);
    }
    mailbox_->Wake();
  }

  void MigrateAll() override {
    {
      std::lock_guard lock(mailbox_->mutex);
      mailbox_->migrate = true;
    }
    mailbox_->Wake();
  }

  bool Drain(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mailbox_->mutex);
    mailbox_->draining = true;
    const auto none_left = [this] { return mailbox_->unfinished == 0; };
    if (mailbox_->idle.wait_for(lock, timeout, none_left)) return true;
    mailbox_->end_all = Unavailable("the server is shutting down");
    mailbox_->woken = true;
    mailbox_->wake.notify_one();
    mailbox_->idle.wait(lock, none_left);
    return false;
  }

  EngineStats stats() const override {
    std::lock_guard lock(mailbox_->mutex);
    EngineStats stats = mailbox_->stats;
    stats.waiting += static_cast<int>(mailbox_->added.size());
    return stats;
  }

 private:
  static uint64_t DrawSeedBase() {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }

  size_t PreemptedMemory() const {
    if (options_.preempted_memory > 0) return options_.preempted_memory;
    return std::max(limits_.limit() / 4, limits_.BytesFor(1));
  }

  std::function<std::unique_ptr<Drafter>()> NewDrafter() {
    if (options_.draft_model == nullptr) return {};
    return [this] { return std::make_unique<ModelDrafter>(options_.draft_model, &*draft_states_); };
  }

  std::optional<StatePool> NewDraftStates() const {
    LanguageModel* model = options_.draft_model;
    if (model == nullptr) return std::nullopt;
    const StatePool sizes(model, 0, 0);
    const size_t states = limits_.limit() + PreemptedMemory();
    if (sizes.growing() || limits_.growing()) return StatePool(model, limits_.limit() / 4, 0);
    StatePool pool(model, states / limits_.BytesFor(1) * sizes.BytesFor(1), 0);
    pool.Fill();
    return pool;
  }

  static size_t StateMemory(LanguageModel* model, const EngineOptions& options) {
    if (options.slot_memory > 0) return options.slot_memory;
    if (StatePool(model, 0, 0).growing()) return kKvStateMemory;
    return static_cast<size_t>(options.max_sequences) * model->StateBytes(1);
  }

  RequestId NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  // The request's own limit, or the one in its place: the server's, and for KV kinds what fits in a
  // fair share of the memory (or, behind a prompt that exceeds the share, in all of it).
  Result<int64_t> MaxTokens(const GenerateRequest& request) const {
    const int64_t before = request.start == nullptr ? 0 : request.start->tokens();
    const auto prompt = before + static_cast<int64_t>(request.prompt.size());
    const int32_t choices = request.params.best_of;
    if (choices > options_.max_sequences + options_.max_queue) {
      return InvalidArgument("best_of: expected at most ",
                             options_.max_sequences + options_.max_queue,
                             " (places of the server), found ", choices);
    }
    if (choices > 1 && request.keep) {
      return InvalidArgument("n: expected 1 where the sequence is kept, found ", choices);
    }
    // Forks begin with a state of their own.
    const size_t memory = limits_.limit() / (choices > 1 ? 2 : 1);
    const int64_t most = limits_.TokensThatFit(memory);
    const int64_t asked = request.params.max_tokens.value_or(1);
    if (prompt + asked > most) {
      return InvalidArgument("max_tokens: expected prompt and max_tokens together at most ", most,
                             " (memory of a state), found ", prompt, " + ", asked);
    }
    if (request.params.max_tokens) return asked;
    const int64_t share =
        limits_.TokensThatFit(memory / static_cast<size_t>(options_.max_sequences));
    const int64_t room = (prompt < share ? share : most) - prompt;
    const int64_t ranked = choices > request.params.n ? kMaxRankedTokens / choices : room;
    return std::min({int64_t{options_.max_new_tokens}, room, ranked});
  }

  Result<RequestId> Enqueue(std::unique_ptr<Sequence> sequence) {
    const RequestId id = sequence->id();
    std::lock_guard lock(mailbox_->mutex);
    if (mailbox_->draining) return Unavailable("the server is draining and takes no new requests");
    // Counted with the slots: a burst that the free slots can take is not refused because none was
    // admitted yet.
    const int places = sequence->places();
    if (mailbox_->places + places > options_.max_sequences + options_.max_queue) {
      return ResourceExhausted("the queue is full: ", options_.max_sequences, " running and ",
                               options_.max_queue, " waiting requests; try again later")
          .WithRetryAfter(mailbox_->retry_delay.OnRefused());
    }
    const int64_t tokens = sequence->UnreadTokens();
    const int64_t queued = mailbox_->stats.waiting_tokens + mailbox_->added_tokens;
    if (options_.max_queue_tokens > 0 && queued > 0 &&
        queued + tokens > options_.max_queue_tokens) {
      return ResourceExhausted("the queue is full: ", queued, " tokens of prompts wait, ",
                               options_.max_queue_tokens, " may; try again later")
          .WithRetryAfter(mailbox_->retry_delay.OnRefused());
    }
    mailbox_->places += places;
    mailbox_->added_tokens += tokens;
    ++mailbox_->unfinished;
    mailbox_->added.push_back(std::move(sequence));
    mailbox_->woken = true;
    mailbox_->wake.notify_one();
    return id;
  }

  // Engine thread, before a FinishEvent goes out: whoever reads it finds the place free.
  void OnEnding(const Sequence& sequence) {
    std::lock_guard lock(mailbox_->mutex);
    mailbox_->places -= sequence.places();
    mailbox_->retry_delay.OnEnded(Clock::now());
  }

  // The engine thread.
  void Run() {
    bool busy = false;
    while (true) {
      std::vector<std::unique_ptr<Sequence>> added;
      std::vector<RequestId> cancelled;
      std::optional<Status> end_all;
      bool stop = false;
      bool migrate = false;
      {
        std::unique_lock lock(mailbox_->mutex);
        if (!busy) {
          const auto woken = [this] { return mailbox_->woken; };
          const Clock::time_point deadline = scheduler_.NextDeadline();
          if (deadline == Clock::time_point::max()) {
            mailbox_->wake.wait(lock, woken);
          } else {
            mailbox_->wake.wait_until(lock, deadline, woken);
          }
        }
        mailbox_->woken = false;
        added.swap(mailbox_->added);
        cancelled.swap(mailbox_->cancelled);
        end_all.swap(mailbox_->end_all);
        stop = mailbox_->stop;
        migrate = std::exchange(mailbox_->migrate, false);
        mailbox_->stats.waiting += static_cast<int>(added.size());
        mailbox_->stats.waiting_tokens += std::exchange(mailbox_->added_tokens, 0);
      }
      if (stop) end_all = Unavailable("the server is shutting down");
      for (auto& sequence : added) scheduler_.Add(std::move(sequence));
      for (const RequestId id : cancelled) {
        scheduler_.End(id, FinishReason::kCancelled,
                       Status(Code::kCancelled, "the request was cancelled"));
      }
      if (migrate) scheduler_.MigrateAll();
      if (end_all) scheduler_.EndAll(FinishReason::kCancelled, *end_all);
      busy = scheduler_.Tick();
      if (const Status status = model_->status(); !status.ok()) EndAfterFailure(status);
      Publish();
      if (stop) return;
    }
  }

  // Of the device: what is on it is lost.
  void EndAfterFailure(const Status& status) {
    {
      std::lock_guard lock(mailbox_->mutex);
      mailbox_->draining = true;  // no new ones
    }
    scheduler_.EndAll(FinishReason::kError, status);
    if (!std::exchange(failure_reported_, true) && options_.on_device_failure) {
      options_.on_device_failure(status);
    }
  }

  void Publish() {
    const Scheduler::Counts counts = scheduler_.counts();
    std::lock_guard lock(mailbox_->mutex);
    EngineStats& stats = mailbox_->stats;
    stats.running = counts.running;
    stats.waiting = counts.waiting;
    stats.idle = counts.idle;
    stats.preempted = counts.preempted;
    stats.waiting_tokens = counts.waiting_tokens;
    stats.preemptions = scheduler_.preemptions();
    stats.state_bytes = counts.state_bytes + (draft_states_ ? draft_states_->reserved() : 0);
    stats.preempted_bytes = counts.preempted_bytes;
    stats.steps = scheduler_.steps();
    mailbox_->unfinished = scheduler_.size() + static_cast<int>(mailbox_->added.size());
    if (mailbox_->unfinished == 0) mailbox_->idle.notify_all();
  }

  EngineObserver silent_observer_;
  const EngineOptions options_;
  const LanguageModel* const model_;
  bool failure_reported_ = false;  // engine thread
  const SequenceContext context_;
  const uint64_t seed_base_;
  const StatePool limits_;                 // for its arithmetic alone: any thread may ask
  std::optional<StatePool> draft_states_;  // of the draft model; engine thread only, once it runs
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::atomic<RequestId> next_id_{1};
  Scheduler scheduler_;  // engine thread only, once it runs
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(LanguageModel* model, const ModelConfig& config,
                                               const Tokenizer* tokenizer,
                                               const EngineOptions& options) {
  PS_RETURN_IF_ERROR(CheckOptions(options, *model, config, tokenizer));
  PS_RETURN_IF_ERROR(ProveForwardPass(model));
  auto engine = std::make_unique<EngineImpl>(model, config, tokenizer, options);
  PS_RETURN_IF_ERROR(engine->CheckStateMemory());
  model->Reserve(options.max_sequences, engine->GrowingMemory());
  if (options.draft_model != nullptr) {
    options.draft_model->Reserve(options.max_sequences, engine->GrowingDraftMemory());
  }
  PS_RETURN_IF_ERROR(model->status());  // the states or the workspace did not fit
  engine->Start();
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace polysketch
