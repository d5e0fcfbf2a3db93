#include "engine/engine_memory.h"

#include <algorithm>

#include "engine/request/context_limit.h"
#include "engine/sampler/sampling_params.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {
namespace {

constexpr size_t kKvSlotMemory = size_t{4} << 30;

StatePool Sizes(LanguageModel* model, const EngineOptions& options) {
  size_t slots = options.slot_memory;
  if (slots == 0) {
    slots = StatePool(model, 0, 0).kv_kind()
                ? kKvSlotMemory
                : static_cast<size_t>(options.max_sequences) * model->StateBytes(1);
  }
  size_t preempted = options.preempted_memory;
  if (preempted == 0) preempted = std::max(slots / 4, model->StateBytes(1));
  return StatePool(model, slots, preempted);
}

// Limit of the bytes of all KV caches together; 0 for recurrent kinds.
size_t KvBytes(const StatePool& states) {
  return states.kv_kind() ? states.limit() + states.preempted_limit() : 0;
}

}  // namespace

EngineMemory::EngineMemory(LanguageModel* model, const EngineOptions& options)
    : model_(model),
      options_(options),
      sizes_(Sizes(model, options)),
      draft_states_(NewDraftStates()) {}

std::optional<StatePool> EngineMemory::NewDraftStates() const {
  LanguageModel* model = options_.draft_model;
  if (model == nullptr) return std::nullopt;
  if (sizes_.kv_kind() || StatePool(model, 0, 0).kv_kind()) {
    return StatePool(model, slot_memory() / 4, 0);
  }
  const size_t sequences = (slot_memory() + preempted_memory()) / sizes_.BytesFor(1);
  StatePool states(model, sequences * model->StateBytes(1), 0);
  states.Fill();
  return states;
}

Status EngineMemory::Check() const {
  if (sizes_.TokensThatFit(slot_memory()) > 0) return Status();
  return InvalidArgument("slot_memory: expected at least the ", sizes_.BytesFor(1),
                         " bytes of one state, found ", slot_memory());
}

Status EngineMemory::Reserve() {
  model_->Reserve(options_.max_sequences, KvBytes(sizes_));
  if (draft_states_) {
    options_.draft_model->Reserve(options_.max_sequences, KvBytes(*draft_states_));
  }
  return model_->status();
}

Result<int64_t> EngineMemory::MaxTokens(const GenerateRequest& request) const {
  const int64_t before = request.start == nullptr ? 0 : request.start->tokens();
  const int64_t prompt = before + std::ssize(request.prompt);
  const bool resumes = request.start != nullptr && request.start->generation.has_value();
  const int64_t asked =
      resumes ? request.start->generation->max_tokens - request.start->generation->generated
              : request.params.max_tokens.value_or(1);
  PS_RETURN_IF_ERROR(CheckContext(options_.context_limit, prompt, asked));
  const int32_t choices = request.params.best_of;
  // A request with several choices reserves the memory of two states: its own, and that of its
  // ForkSource.
  const size_t memory = slot_memory() / (choices > 1 ? 2 : 1);
  const int64_t max = sizes_.TokensThatFit(memory);
  if (prompt + asked > max) {
    return InvalidArgument("max_tokens: expected prompt and output together at most ", max,
                           " (memory of a state), found ", prompt, " + ", asked, ", which need ",
                           sizes_.BytesFor(prompt + asked), " bytes of ", memory);
  }
  if (resumes || request.params.max_tokens) return asked;
  const int64_t share = sizes_.TokensThatFit(memory / static_cast<size_t>(options_.max_sequences));
  int64_t room = (prompt < share ? share : max) - prompt;
  if (options_.context_limit > 0) room = std::min(room, options_.context_limit - prompt);
  const int64_t ranked = choices > request.params.n ? kMaxRankedTokens / choices : room;
  const int32_t most = std::min(options_.max_new_tokens, options_.default_max_tokens);
  return std::min({int64_t{most}, room, ranked});
}

Status EngineMemory::CheckStart(const Snapshot& start) const {
  const size_t bytes = sizes_.BytesFor(std::max<int64_t>(1, start.tokens()));
  if (bytes <= slot_memory()) return Status();
  return InvalidArgument("state: expected at most ", sizes_.TokensThatFit(slot_memory()),
                         " tokens (memory of a state), found ", start.tokens(), ", which need ",
                         bytes, " bytes of ", slot_memory());
}

}  // namespace polysketch
