#include "engine/engine_options.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/sampler/sampling_params.h"

namespace polysketch {
namespace {

Status CheckMin(const char* name, int64_t value, int64_t min) {
  if (value >= min) return Status();
  return InvalidArgument(name, ": expected ", min, " or more, found ", value);
}

Status CheckVocabulary(const char* name, int found, int expected) {
  if (found == expected) return Status();
  return FailedPrecondition(name, ": expected vocab_size ", expected, " as the model has, found ",
                            found);
}

}  // namespace

Status CheckOptions(const EngineOptions& options, const LanguageModel& model,
                    const Tokenizer* tokenizer) {
  PS_RETURN_IF_ERROR(CheckMin("max_sequences", options.max_sequences, 1));
  PS_RETURN_IF_ERROR(CheckMin("max_queue", options.max_queue, 0));
  // A step has room for one token of every decoding sequence and one token of a prompt.
  const int step_tokens = std::min(options.max_step_tokens, model.max_step_tokens());
  if (step_tokens <= options.max_sequences) {
    return InvalidArgument("max_step_tokens: expected more than max_sequences (",
                           options.max_sequences, "), found ", step_tokens);
  }
  PS_RETURN_IF_ERROR(CheckMin("max_prompt_tokens", options.max_prompt_tokens, 1));
  PS_RETURN_IF_ERROR(CheckMin("max_new_tokens", options.max_new_tokens, 1));
  PS_RETURN_IF_ERROR(CheckMin("default_max_tokens", options.default_max_tokens, 1));
  PS_RETURN_IF_ERROR(CheckMin("context_limit", options.context_limit, 0));
  if (options.stall_deadline.count() < 1 || options.stall_deadline > std::chrono::hours(24 * 365)) {
    return InvalidArgument("stall_deadline: expected 1 ms to a year, found ",
                           options.stall_deadline.count(), " ms");
  }
  PS_RETURN_IF_ERROR(CheckMin("sampling_threads", options.sampling_threads, 1));
  if (options.draft_tokens < 0 || options.draft_tokens > kMaxDraftTokens) {
    return InvalidArgument("draft_tokens: expected 0 to ", kMaxDraftTokens, ", found ",
                           options.draft_tokens);
  }
  const int vocab_size = model.vocab_size();
  for (const int32_t id : options.eos_ids) {
    if (id >= 0 && id < vocab_size) continue;
    return InvalidArgument("eos_ids: expected ids in [0, ", vocab_size, "), found ", id);
  }
  if (options.draft_model != nullptr) {
    PS_RETURN_IF_ERROR(
        CheckVocabulary("the draft model", options.draft_model->vocab_size(), vocab_size));
  }
  if (tokenizer == nullptr) return Status();
  return CheckVocabulary("the tokenizer", tokenizer->vocab_size(), vocab_size);
}

Status CheckForwardPass(LanguageModel* model) {
  PS_RETURN_IF_ERROR(model->status());  // an error during loading
  const int length = std::min(8, model->max_step_tokens());
  std::vector<int32_t> tokens;
  for (int i = 0; i <= length; ++i) tokens.push_back(i * 37 % model->vocab_size());
  const auto rows = static_cast<size_t>(length);
  std::vector<float> hidden(rows * static_cast<size_t>(model->hidden_size()));
  std::vector<float> logits(rows * static_cast<size_t>(model->vocab_size()));
  const auto state = model->NewState();
  bool finite = true;
  const std::span<const int32_t> all(tokens);
  for (const std::span<const int32_t> segment : {all.first(rows), all.last(1)}) {
    model->Step(OneSegment(state.get(), segment, OutputRows::kAll), hidden.data());
    model->Logits(hidden.data(), std::ssize(segment), logits.data());
    const auto end = logits.begin() + std::ssize(segment) * model->vocab_size();
    finite = finite && std::all_of(logits.begin(), end, [](float x) { return std::isfinite(x); });
  }
  PS_RETURN_IF_ERROR(model->status());
  if (finite) return Status();
  return FailedPrecondition(
      "the model's first forward pass gave logits that are not finite: its weights are damaged");
}

}  // namespace polysketch
