// What the engine tells of its work, for metrics.
#pragma once

#include <chrono>

#include "engine/request/request.h"

namespace polysketch {

// Where the time of a step went.
struct StepParts {
  std::chrono::nanoseconds layers{0};    // the layers of the model
  std::chrono::nanoseconds logits{0};    // the product with the vocabulary, normalisers
  std::chrono::nanoseconds sampling{0};  // choosing tokens, text, events
  std::chrono::nanoseconds storing{0};   // copying states for the prefix cache
};

enum class StoreOperation { kPut, kGet, kOther };

// Observations for metrics, called from the engine thread; implementations must be quick and
// thread-safe. Defaults ignore.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnAdmitted(std::chrono::nanoseconds /*queue_time*/) {}
  virtual void OnFirstToken(std::chrono::nanoseconds /*since_arrival*/) {}
  virtual void OnTokenGap(std::chrono::nanoseconds /*since_previous_token*/) {}
  virtual void OnStep(int /*sequences*/, int /*prefill_tokens*/, int /*decode_tokens*/,
                      std::chrono::nanoseconds /*duration*/) {}
  // Behind each OnStep: the rest of its duration is bookkeeping.
  virtual void OnStepParts(const StepParts& /*parts*/) {}
  // A draft was verified: its first `accepted` tokens held.
  virtual void OnDraft(int64_t /*proposed*/, int64_t /*accepted*/) {}
  // The state store did something, well or not; from any thread.
  virtual void OnStore(StoreOperation /*operation*/, std::chrono::nanoseconds /*duration*/) {}
  virtual void OnFinished(const FinishEvent& /*finish*/) {}
};

}  // namespace polysketch
