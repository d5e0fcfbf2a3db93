// Limits of the memory that the states of an engine may take, and of the length of a sequence.
//
// Threads: MaxTokens may be called by any thread; the states of the draft model are the engine
// thread's.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/model/state_pool.h"
#include "engine/request/request.h"

namespace polysketch {

class EngineMemory {
 public:
  // Allocates the states of the draft model that exist before the first request.
  EngineMemory(LanguageModel* model, const EngineOptions& options);

  size_t slot_memory() const { return sizes_.limit(); }
  size_t preempted_memory() const { return sizes_.preempted_limit(); }
  // Null without a draft model.
  StatePool* draft_states() { return draft_states_ ? &*draft_states_ : nullptr; }

  // INVALID_ARGUMENT if slot memory is less than one state.
  Status Check() const;
  // Allocates what steps need in the memory of a device.
  Status Reserve();

  // The max_tokens of a request, or the default in its place: that of the options, at most what the
  // context limit leaves, and for KV kinds what fits in an equal share of slot memory (after a
  // prompt that exceeds the share: in all of it). A completion that resumes has the rest of its
  // own. INVALID_ARGUMENT for prompt and max_tokens that exceed the context limit together
  // (CONTEXT_LENGTH_EXCEEDED), or slot memory.
  Result<int64_t> MaxTokens(const GenerateRequest& request) const;
  // INVALID_ARGUMENT for a snapshot, which a score starts from, that exceeds slot memory.
  Status CheckStart(const Snapshot& start) const;

 private:
  std::optional<StatePool> NewDraftStates() const;

  LanguageModel* const model_;
  const EngineOptions& options_;
  const StatePool sizes_;  // allocates no states: used for its arithmetic only
  std::optional<StatePool> draft_states_;
};

}  // namespace polysketch
