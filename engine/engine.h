// The engine behind the server: one thread that batches whatever is running into steps of the
// model.
//
//   auto engine = Engine::Create(options);            // loads the model, proves it with a forward
//   pass auto stream = std::make_shared<EventStream>(64); stream->SetOnReady(...); auto id =
//   engine->Submit(GenerateRequest{...}, stream);   // or why it was refused engine->Cancel(*id);
//   // frees the slot within one step
//
// Threads: every public method may be called from any thread. Events are produced on the engine
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/model_config.h"
#include "engine/model/model.h"
#include "engine/request/observer.h"
#include "engine/request/request.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class PrefixCache;

struct EngineOptions {
  int max_sequences = 16;  // slots: sequences running at once
  int max_queue = 256;     // waiting requests; more get RESOURCE_EXHAUSTED
  // Prompt tokens of waiting requests; one that would pass it gets RESOURCE_EXHAUSTED, unless it is
  // the only one. 0: no bound.
  int64_t max_queue_tokens = 0;
  int max_step_tokens = 512;  // most tokens of one step (prefill chunks beside decoding sequences)
  int64_t max_prompt_tokens = int64_t{1} << 24;
  int32_t max_new_tokens = 1 << 20;  // default and upper limit of max_tokens
  size_t slot_memory = 0;  // bytes for all states; 0: max_sequences states of a recurrent kind, or
                           // 4 GiB for KV kinds
  size_t preempted_memory =
      0;  // bytes for states of requests that gave up their slot; 0: a quarter
          // of slot_memory, at least one
  // What a prompt may add to a step beside decoding requests; 0: no bound.
  std::chrono::milliseconds step_budget{25};
  // Speculative decoding: most draft tokens a step of a request that does not say; 0: none.
  int draft_tokens = 0;
  // Of the same vocabulary; null: prompt lookup. Its states may take, beside slot_memory, one for
  // each sequence that has a state of the model (of a KV kind: a quarter of slot_memory); a
  // sequence that gets none drafts nothing.
  LanguageModel* draft_model = nullptr;
  int sampling_threads = 1;  // that tokens are drawn on, where the model has none on the host
  std::chrono::milliseconds stall_deadline{
      30000};                           // a reader that takes nothing for so long ends its request
  PrefixCache* prefix_cache = nullptr;  // outlives the engine; null: none
  EngineObserver* observer = nullptr;
  // Called by the engine thread around the tokens of a step: with true before the first, with false
  // behind the last. Readers that sleep until then take its processor once, not token by token.
  std::function<void(bool)> batch_notifications = [](bool) {};
  // Called once, by the engine thread, when the device has failed: every request has ended with
  // INTERNAL then, and new ones get UNAVAILABLE.
  std::function<void(const Status&)> on_device_failure = {};
};

struct EngineStats {
  int running = 0;
  int waiting = 0;
  int idle = 0;       // of the running: wait for their reader or input
  int preempted = 0;  // gave their slot to others: slow readers, lower priorities
  int64_t waiting_tokens = 0;
  int64_t preemptions = 0;  // how often a request gave up its slot
  size_t state_bytes = 0;   // held by running sequences, and by a draft model for all
  size_t state_bytes_limit = 0;
  size_t preempted_bytes = 0;  // held by the preempted ones
  size_t preempted_bytes_limit = 0;
  int64_t steps = 0;
};

class Engine {
 public:
  // model and tokenizer (may be null: token ids only) outlive the engine. Starts the engine thread
  // and runs one real forward pass; an error when that yields values that are not finite.
  static Result<std::unique_ptr<Engine>> Create(LanguageModel* model, const ModelConfig& config,
                                                const Tokenizer* tokenizer,
                                                const EngineOptions& options);
  virtual ~Engine() = default;  // cancels what is running, joins the thread

  // Refuses with INVALID_ARGUMENT (names the field), RESOURCE_EXHAUSTED (queue full; with a retry
  // delay), UNAVAILABLE (draining); what follows a snapshot is refused with INVALID_ARGUMENT for
  // one that does not fit the model. After an OK the stream gets exactly one FinishEvent, whatever
  // happens.
  virtual Result<RequestId> Submit(GenerateRequest request,
                                   std::shared_ptr<EventStream> stream) = 0;
  virtual Result<RequestId> Submit(ScoreRequest request, std::shared_ptr<EventStream> stream) = 0;
  // Ends the request with kCancelled within one step. Unknown or finished ids are ignored.
  virtual void Cancel(RequestId id) = 0;

  // Ends every completion, waiting ones too, with kMigrated and a snapshot from which another
  // replica goes on with the very next token. Scores are left alone.
  virtual void MigrateAll() = 0;

  // Refuses new requests from now on; running and waiting ones go on. Returns true once none is
  // left, false after `timeout` (then what is left is ended with UNAVAILABLE).
  virtual bool Drain(std::chrono::milliseconds timeout) = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace polysketch
