// What the engine tells of its work, for metrics.
#pragma once

#include <chrono>

#include "engine/request.h"

namespace polysketch {

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
  virtual void OnFinished(const FinishEvent& /*finish*/) {}
};

}  // namespace polysketch
