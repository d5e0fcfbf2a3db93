// What the engine reports about its work, for metrics.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/request/events.h"

namespace polysketch {

// Where the time of a step went.
struct StepParts {
  std::chrono::nanoseconds layers{0};    // the layers of the model
  std::chrono::nanoseconds logits{0};    // the product with the vocabulary, log-sum-exp
  std::chrono::nanoseconds sampling{0};  // sampling, text, events
  std::chrono::nanoseconds copying{0};  // of states: loading them, storing them in the prefix cache
};

struct EngineStats {
  int running = 0;  // sequences that have a slot
  int waiting = 0;  // sequences that have had no slot yet
  int idle = 0;     // running sequences that are idle
  int preempted = 0;
  int preempted_ready = 0;     // preempted sequences that are not idle
  int64_t waiting_tokens = 0;  // of the prompts of waiting sequences
  int64_t preemptions = 0;     // since the start
  int64_t dropped_states = 0;  // since the start: of preempted sequences, which start again
  int64_t dropped_tokens = 0;  // of them, to be processed again
  size_t state_bytes = 0;  // charged for states of running sequences; all states of a draft model
  size_t state_bytes_limit = 0;
  size_t preempted_bytes = 0;  // states of preempted sequences
  size_t preempted_bytes_limit = 0;
  int64_t steps = 0;  // since the start
  // Waiting requests whose place in the queue another client got, since the start.
  int64_t given_up = 0;
  bool working = false;  // the engine thread does not wait for work
  int64_t turns = 0;     // times that the engine thread has looked for work
};

enum class StoreOperation { kPut, kGet, kOther };

// Called by the engine thread, so an implementation must be quick. The defaults do nothing.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnAdmitted(std::chrono::nanoseconds /*queue_time*/) {}
  virtual void OnFirstToken(std::chrono::nanoseconds /*since_arrival*/) {}
  virtual void OnTokenGap(std::chrono::nanoseconds /*since_previous_token*/) {}
  virtual void OnStep(int /*sequences*/, int /*prefill_tokens*/, int /*decode_tokens*/,
                      std::chrono::nanoseconds /*duration*/) {}
  // Called after each OnStep. The rest of that step's duration is scheduling.
  virtual void OnStepParts(const StepParts& /*parts*/) {}
  // A draft was verified: its first `accepted` tokens were sampled.
  virtual void OnDraft(int64_t /*proposed*/, int64_t /*accepted*/) {}
  // The state store completed an operation, with or without an error. Called by any thread.
  virtual void OnStore(StoreOperation /*operation*/, std::chrono::nanoseconds /*duration*/) {}
  virtual void OnFinished(const FinishEvent& /*finish*/) {}
};

}  // namespace polysketch
