// What an engine is created with.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "engine/model/language_model.h"
#include "engine/request/observer.h"
#include "engine/scheduler/kv_admission.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class PrefixCache;

struct EngineOptions {
  int max_sequences = 16;  // slots
  int max_queue = 256;     // waiting requests; more get RESOURCE_EXHAUSTED
  // Limit of the prompt tokens of all waiting requests. A request that would exceed the limit gets
  // RESOURCE_EXHAUSTED, unless no other request waits. 0: no limit.
  int64_t max_queue_tokens = 0;
  int max_step_tokens = 512;  // decoding sequences, drafts and chunks of prompts together
  int64_t max_prompt_tokens = int64_t{1} << 24;
  int32_t max_new_tokens = 1 << 20;      // upper limit of max_tokens
  int32_t default_max_tokens = 1 << 20;  // of requests that set none, at most max_new_tokens
  // Tokens of the longest sequence that the model computes, prompt and output together; 0: no
  // limit.
  int64_t context_limit = 0;
  // Tokens of the vocabulary that end an output, unless it ignores EOS. The first is EOS itself.
  std::vector<int32_t> eos_ids = {};
  // Limit in bytes of all states of running sequences. 0: max_sequences states of a recurrent kind,
  // or 4 GiB for KV kinds.
  size_t slot_memory = 0;
  // Limit in bytes of all states of preempted sequences. 0: a quarter of slot_memory, at least one
  // state.
  size_t preempted_memory = 0;
  KvAdmission kv_admission = KvAdmission::kPreempt;
  // Maximum time that prompts add to a step with decoding sequences; 0: no limit.
  std::chrono::milliseconds step_budget{25};
  // Maximum draft tokens a step of a request that sets none; 0: no drafts.
  int draft_tokens = 0;
  // A model with the same vocabulary that proposes drafts; null: prompt lookup. The memory of its
  // states is not part of slot_memory. It is limited to one state for each sequence that has a
  // state of the model or, if either model is of a KV kind, to a quarter of slot_memory. A sequence
  // without a draft state gets no drafts.
  LanguageModel* draft_model = nullptr;
  int64_t draft_context_limit = 0;  // of the draft model: a longer sequence gets no drafts; 0: none
  int sampling_threads = 1;         // used if the model has no threads on the host
  // A request is ended if its reader takes no event of a full buffer, or no input arrives, for this
  // time.
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

// INVALID_ARGUMENT names an option that is out of range, FAILED_PRECONDITION a draft model
// or tokenizer whose vocabulary differs from the model's. `tokenizer` may be null.
Status CheckOptions(const EngineOptions& options, const LanguageModel& model,
                    const Tokenizer* tokenizer);

// Runs a prompt of a few tokens and a decode step. FAILED_PRECONDITION if a logit is not finite, or
// the error of the model's device.
Status CheckForwardPass(LanguageModel* model);

}  // namespace polysketch
