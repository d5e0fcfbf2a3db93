#include "engine/sampler/sampling_params.h"

#include <string_view>
#include <unordered_set>

#include "base/utf8.h"

namespace polysketch {
namespace {

// Written so that NaN fails.
Status CheckRange(std::string_view field, float value, float low, float high) {
  if (value >= low && value <= high) return Status();
  return InvalidArgument(field, ": expected a number in [", low, ", ", high, "], found ", value);
}

Status CheckId(std::string_view field, size_t index, int32_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return Status();
  return InvalidArgument(field, "[", index, "]: expected an id in [0, ", vocab_size, "), found ",
                         id);
}

}  // namespace

Status ValidateSampling(const SamplingParams& params, int vocab_size) {
  PS_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 0.0f, kMaxTemperature));
  if (params.top_k < 0) {
    return InvalidArgument("top_k: expected 0 (off) or more, found ", params.top_k);
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return InvalidArgument("top_p: expected a number in (0, 1], found ", params.top_p);
  }
  PS_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0.0f, 1.0f));
  PS_RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty,
                                kMinRepetitionPenalty, kMaxRepetitionPenalty));
  PS_RETURN_IF_ERROR(CheckRange("frequency_penalty", params.frequency_penalty, -kMaxAdditivePenalty,
                                kMaxAdditivePenalty));
  PS_RETURN_IF_ERROR(CheckRange("presence_penalty", params.presence_penalty, -kMaxAdditivePenalty,
                                kMaxAdditivePenalty));
  std::unordered_set<int32_t> biased;
  for (size_t i = 0; i < params.logit_bias.size(); ++i) {
    const auto& [id, bias] = params.logit_bias[i];
    PS_RETURN_IF_ERROR(CheckId("logit_bias", i, id, vocab_size));
    PS_RETURN_IF_ERROR(
        CheckRange(StrCat("logit_bias[", i, "]"), bias, -kMaxLogitBias, kMaxLogitBias));
    if (!biased.insert(id).second) {
      return InvalidArgument("logit_bias[", i, "]: expected each id once, found ", id, " again");
    }
  }
  return Status();
}

namespace {

Status ValidateChoices(const GenerateParams& params) {
  if (params.n < 1 || params.n > kMaxChoices) {
    return InvalidArgument("n: expected 1 to ", kMaxChoices, ", found ", params.n);
  }
  if (params.best_of < params.n || params.best_of > kMaxChoices) {
    return InvalidArgument("best_of: expected n (", params.n, ") to ", kMaxChoices, ", found ",
                           params.best_of);
  }
  const int64_t max_tokens = params.max_tokens.value_or(1);
  if (params.best_of > 1 && max_tokens == 0) {
    return InvalidArgument("max_tokens: expected at least 1 for more than one choice, found 0");
  }
  if (params.best_of > params.n && max_tokens * params.best_of > kMaxRankedTokens) {
    return InvalidArgument("max_tokens: expected at most ", kMaxRankedTokens / params.best_of,
                           " with best_of ", params.best_of, ", found ", max_tokens);
  }
  return Status();
}

}  // namespace

Status ValidateGenerate(const GenerateParams& params, int vocab_size, int32_t max_new_tokens,
                        bool has_tokenizer) {
  PS_RETURN_IF_ERROR(ValidateSampling(params.sampling, vocab_size));
  if (params.max_tokens && (*params.max_tokens < 0 || *params.max_tokens > max_new_tokens)) {
    return InvalidArgument("max_tokens: expected 0 to ", max_new_tokens, ", found ",
                           *params.max_tokens);
  }
  if (params.stop.size() > kMaxStopStrings) {
    return InvalidArgument("stop: expected at most ", kMaxStopStrings, " strings, found ",
                           params.stop.size());
  }
  for (size_t i = 0; i < params.stop.size(); ++i) {
    const std::string& stop = params.stop[i];
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return InvalidArgument("stop[", i, "]: expected 1 to ", kMaxStopBytes, " bytes, found ",
                             stop.size());
    }
    if (const size_t valid = ValidUtf8Prefix(stop); valid != stop.size()) {
      return InvalidArgument("stop[", i, "]: expected UTF-8, found an invalid byte at offset ",
                             valid);
    }
  }
  if (!params.stop.empty() && !has_tokenizer) {
    return FailedPrecondition(
        "stop: stop strings need a tokenizer, and this model has none; use stop_token_ids");
  }
  if (params.stop_token_ids.size() > kMaxStopTokens) {
    return InvalidArgument("stop_token_ids: expected at most ", kMaxStopTokens, " ids, found ",
                           params.stop_token_ids.size());
  }
  for (size_t i = 0; i < params.stop_token_ids.size(); ++i) {
    PS_RETURN_IF_ERROR(CheckId("stop_token_ids", i, params.stop_token_ids[i], vocab_size));
  }
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kMaxTopLogprobs)) {
    return InvalidArgument("logprobs: expected 0 to ", kMaxTopLogprobs, ", found ",
                           *params.logprobs);
  }
  if (params.draft_tokens && (*params.draft_tokens < 0 || *params.draft_tokens > kMaxDraftTokens)) {
    return InvalidArgument("draft_tokens: expected 0 to ", kMaxDraftTokens, ", found ",
                           *params.draft_tokens);
  }
  return ValidateChoices(params);
}

Status ValidatePrompt(std::span<const int32_t> prompt, int vocab_size, int64_t max_prompt_tokens) {
  if (prompt.empty()) return InvalidArgument("prompt: expected at least one token, found none");
  if (static_cast<int64_t>(prompt.size()) > max_prompt_tokens) {
    return InvalidArgument("prompt: expected at most ", max_prompt_tokens, " tokens, found ",
                           prompt.size());
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    PS_RETURN_IF_ERROR(CheckId("prompt", i, prompt[i], vocab_size));
  }
  return Status();
}

}  // namespace polysketch
