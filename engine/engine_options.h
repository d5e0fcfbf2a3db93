// What an engine is created with.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "engine/checkpoint/model_config.h"
#include "engine/model/language_model.h"
#include "engine/request/observer.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class PrefixCache;

struct EngineOptions {
  int max_sequences = 16;  // slots
  int max_queue = 256;     // waiting requests; more get RESOURCE_EXHAUSTED
  // Prompt tokens of waiting requests; a request that would exceed them gets RESOURCE_EXHAUSTED,
  // unless no other waits. 0: no limit.
  int64_t max_queue_tokens = 0;
  int max_step_tokens = 512;  // decoding sequences, drafts and chunks of prompts together
  int64_t max_prompt_tokens = int64_t{1} << 24;
  int32_t max_new_tokens = 1 << 20;  // default and upper limit of max_tokens
  // Bytes of all states of running sequences. 0: max_sequences states of a recurrent kind, or 4 GiB
  // for KV kinds.
  size_t slot_memory = 0;
  // Bytes of all states of preempted sequences. 0: a quarter of slot_memory, one state at least.
  size_t preempted_memory = 0;
  // Time that prompts may add to a step with decoding sequences; 0: no limit.
  std::chrono::milliseconds step_budget{25};
  // Maximum draft tokens a step of a request that sets none; 0: no drafts.
  int draft_tokens = 0;
  // A model with the same vocabulary that proposes drafts; null: prompt lookup. Its states may take,
  // beside slot_memory, one state for each sequence that has a state of the model (if either is of a
  // KV kind: a quarter of slot_memory). A sequence without a draft state gets no drafts.
  LanguageModel* draft_model = nullptr;
  int sampling_threads = 1;  // where the model has no threads on the host
  // A request whose reader takes no event, or whose input does not arrive, for this long is ended.
  std::chrono::milliseconds stall_deadline{30000};
  PrefixCache* prefix_cache = nullptr;  // outlives the engine; null: none
  EngineObserver* observer = nullptr;   // null: none
  // Called by the engine thread with true before the first event of a step and with false after the
  // last, so that a reader is woken once a step and not once a token.
  std::function<void(bool)> batch_notifications = [](bool) {};
  // Called once by the engine thread when the device has failed: every request has ended with
  // INTERNAL, and new ones get UNAVAILABLE.
  std::function<void(const Status&)> on_device_failure = {};
};

// INVALID_ARGUMENT names an option, FAILED_PRECONDITION a model or tokenizer that does not fit the
// others. `tokenizer` may be null.
Status CheckOptions(const EngineOptions& options, const LanguageModel& model,
                    const ModelConfig& config, const Tokenizer* tokenizer);

// Runs a few tokens as a prompt and one as a decode step. FAILED_PRECONDITION when a logit is not
// finite.
Status CheckForwardPass(LanguageModel* model);

}  // namespace polysketch
