#include "engine/sampler/sampling_params.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "base/utf8.h"

namespace polysketch {
namespace {

// With all digits that tell the number from others.
std::string NumberText(float value) {
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

// An unset value is legal.
Status CheckCount(std::string_view field, std::optional<int64_t> value, int64_t low, int64_t high) {
  if (!value || (*value >= low && *value <= high)) return Status();
  return InvalidArgument(field, ": expected ", low, " to ", high, ", found ", *value);
}

Status CheckSize(std::string_view field, size_t size, size_t max, std::string_view unit) {
  if (size <= max) return Status();
  return InvalidArgument(field, ": expected at most ", max, " ", unit, ", found ", size);
}

Status CheckIds(std::string_view field, std::span<const int32_t> ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return InvalidArgument(field, "[", i, "]: expected an id in [0, ", vocab_size, "), found ",
                           ids[i]);
  }
  return Status();
}

Status CheckStop(std::string_view field, std::string_view stop) {
  if (stop.empty() || stop.size() > kMaxStopBytes) {
    return InvalidArgument(field, ": expected 1 to ", kMaxStopBytes, " bytes, found ", stop.size());
  }
  const size_t valid = ValidUtf8Prefix(stop);
  if (valid == stop.size()) return Status();
  return InvalidArgument(field, ": expected UTF-8, found an invalid byte at offset ", valid);
}

// A bad word is two sequences: with a space before it and without.
Status CheckBadWords(const SamplingParams& params, int vocab_size) {
  PS_RETURN_IF_ERROR(
      CheckSize("bad_words", params.bad_words.size(), 2 * kMaxBadWords, "sequences of tokens"));
  for (size_t i = 0; i < params.bad_words.size(); ++i) {
    const std::string field = StrCat("bad_words[", i, "]");
    if (params.bad_words[i].empty())
      return InvalidArgument(field, ": expected at least one token, found none");
    PS_RETURN_IF_ERROR(CheckSize(field, params.bad_words[i].size(), kMaxBadWordTokens, "tokens"));
    PS_RETURN_IF_ERROR(CheckIds(field, params.bad_words[i], vocab_size));
  }
  return Status();
}

Status CheckChoices(const GenerateParams& params) {
  PS_RETURN_IF_ERROR(CheckCount("n", params.n, 1, kMaxChoices));
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

Status CheckGrammar(const GenerateParams& params, bool has_tokenizer) {
  if (!params.grammar) return Status();
  if (!has_tokenizer) {
    return FailedPrecondition("structured_output: needs a tokenizer, and this model has none")
        .WithReason(Reason::kTokenizerMissing);
  }
  PS_RETURN_IF_ERROR(
      CheckSize("structured_output", params.grammar->text.size(), kMaxGrammarBytes, "bytes"));
  PS_RETURN_IF_ERROR(CheckCount("max_tokens", params.max_tokens, 0, kMaxGrammarTokens));
  if (!params.ignore_eos) return Status();
  return InvalidArgument(
      "ignore_eos: expected false with structured_output: EOS ends an output that is complete");
}

}  // namespace

std::string ParameterRange::Text() const {
  return StrCat("a number in ", above ? '(' : '[', NumberText(low), ", ", NumberText(high), ']');
}

Status CheckRange(std::string_view field, float value, const ParameterRange& range) {
  if (range.Contains(value)) return Status();
  return InvalidArgument(field, ": expected ", range.Text(), ", found ", NumberText(value));
}

float ToParameter(double number) {
  constexpr float kMin = std::numeric_limits<float>::min();
  const auto rounded = static_cast<float>(number);
  return number != 0 && std::abs(rounded) < kMin ? std::copysign(kMin, rounded) : rounded;
}

Status ValidateSampling(const SamplingParams& params, int vocab_size) {
  PS_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, kTemperatureRange));
  if (params.top_k < 0) {
    return InvalidArgument("top_k: expected 0 (off) or more, found ", params.top_k);
  }
  PS_RETURN_IF_ERROR(CheckRange("top_p", params.top_p, kTopPRange));
  PS_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, kMinPRange));
  PS_RETURN_IF_ERROR(
      CheckRange("repetition_penalty", params.repetition_penalty, kRepetitionPenaltyRange));
  PS_RETURN_IF_ERROR(
      CheckRange("frequency_penalty", params.frequency_penalty, kAdditivePenaltyRange));
  PS_RETURN_IF_ERROR(
      CheckRange("presence_penalty", params.presence_penalty, kAdditivePenaltyRange));
  PS_RETURN_IF_ERROR(CheckSize("allowed_token_ids", params.allowed_token_ids.size(),
                               static_cast<size_t>(vocab_size), "ids"));
  PS_RETURN_IF_ERROR(CheckIds("allowed_token_ids", params.allowed_token_ids, vocab_size));
  PS_RETURN_IF_ERROR(CheckBadWords(params, vocab_size));
  std::vector<int32_t> biased;
  for (const auto& [id, bias] : params.logit_bias) biased.push_back(id);
  PS_RETURN_IF_ERROR(CheckIds("logit_bias", biased, vocab_size));
  std::unordered_set<int32_t> seen;
  for (size_t i = 0; i < biased.size(); ++i) {
    const std::string field = StrCat("logit_bias[", i, "]");
    PS_RETURN_IF_ERROR(CheckRange(field, params.logit_bias[i].second, kLogitBiasRange));
    if (!seen.insert(biased[i]).second) {
      return InvalidArgument(field, ": expected each id once, found ", biased[i], " again");
    }
  }
  return Status();
}

Status ValidateGenerate(const GenerateParams& params, int vocab_size, int32_t max_new_tokens,
                        bool has_tokenizer) {
  PS_RETURN_IF_ERROR(ValidateSampling(params.sampling, vocab_size));
  PS_RETURN_IF_ERROR(CheckCount("max_tokens", params.max_tokens, 0, max_new_tokens));
  PS_RETURN_IF_ERROR(
      CheckCount("min_tokens", params.min_tokens, 0, params.max_tokens.value_or(max_new_tokens)));
  PS_RETURN_IF_ERROR(CheckSize("stop", params.stop.size(), kMaxStopStrings, "strings"));
  for (size_t i = 0; i < params.stop.size(); ++i) {
    PS_RETURN_IF_ERROR(CheckStop(StrCat("stop[", i, "]"), params.stop[i]));
  }
  if (!params.stop.empty() && !has_tokenizer) {
    return FailedPrecondition(
               "stop: stop strings need a tokenizer, and this model has none; use stop_token_ids")
        .WithReason(Reason::kTokenizerMissing);
  }
  PS_RETURN_IF_ERROR(
      CheckSize("stop_token_ids", params.stop_token_ids.size(), kMaxStopTokens, "ids"));
  PS_RETURN_IF_ERROR(CheckIds("stop_token_ids", params.stop_token_ids, vocab_size));
  PS_RETURN_IF_ERROR(CheckCount("logprobs", params.logprobs, 0, kMaxTopLogprobs));
  if (params.logprobs_from < 0) {
    return InvalidArgument("logprobs_from: expected 0 or more, found ", params.logprobs_from);
  }
  if (params.logprobs_from > 0 && !(params.echo && params.logprobs)) {
    return InvalidArgument("logprobs_from: expected with echo and logprobs only");
  }
  PS_RETURN_IF_ERROR(CheckCount("draft_tokens", params.draft_tokens, 0, kMaxDraftTokens));
  PS_RETURN_IF_ERROR(CheckGrammar(params, has_tokenizer));
  return CheckChoices(params);
}

Status ValidatePrompt(std::span<const int32_t> prompt, int vocab_size, int64_t max_prompt_tokens) {
  if (prompt.empty()) return InvalidArgument("prompt: expected at least one token, found none");
  PS_RETURN_IF_ERROR(
      CheckSize("prompt", prompt.size(), static_cast<size_t>(max_prompt_tokens), "tokens"));
  return CheckIds("prompt", prompt, vocab_size);
}

}  // namespace polysketch
