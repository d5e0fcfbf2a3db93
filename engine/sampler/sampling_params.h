// Validates sampling and generation parameters. INVALID_ARGUMENT names the field, what was expected
// and what was found.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/request/params.h"

namespace polysketch {

struct ParameterRange {
  float low;
  float high;
  bool above = false;  // `low` is not in the range

  // False for NaN.
  bool Contains(double value) const {
    return (above ? value > low : value >= low) && value <= high;
  }
  // "a number in (0, 1]".
  std::string Text() const;
};

// Limits of fields. Where vLLM or the OpenAI API has a limit, it is the same.
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxRepetitionPenalty = 100.0f;
inline constexpr float kMaxAdditivePenalty = 2.0f;
inline constexpr float kMaxLogitBias = 100.0f;
inline constexpr ParameterRange kTemperatureRange = {0.0f, kMaxTemperature};
inline constexpr ParameterRange kTopPRange = {0.0f, 1.0f, /*above=*/true};
inline constexpr ParameterRange kMinPRange = {0.0f, 1.0f};
inline constexpr ParameterRange kRepetitionPenaltyRange = {kMinRepetitionPenalty,
                                                           kMaxRepetitionPenalty};
inline constexpr ParameterRange kAdditivePenaltyRange = {-kMaxAdditivePenalty, kMaxAdditivePenalty};
inline constexpr ParameterRange kLogitBiasRange = {-kMaxLogitBias, kMaxLogitBias};
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string
inline constexpr size_t kMaxStopTokens = 1024;
inline constexpr size_t kMaxBadWords = 256;
inline constexpr size_t kMaxBadWordBytes = 256;  // of one of them
// A space before the word and a dummy prefix add bytes, and a byte is one token at most.
inline constexpr size_t kMaxBadWordTokens = 1024;
inline constexpr int kMaxChoices = 64;
// Limit of max_tokens * best_of if best_of > n: all choices are held in memory until the last one
// has ended.
inline constexpr int64_t kMaxRankedTokens = 1 << 20;
inline constexpr int kMaxDraftTokens = 64;
// Limit of GrammarSource::text in bytes.
inline constexpr size_t kMaxGrammarBytes = size_t{128} << 10;
// Limit of max_tokens of an output with a grammar: the grammar's process remembers all of it.
inline constexpr int32_t kMaxGrammarTokens = 1 << 15;

// The field is `field` in an error.
Status CheckRange(std::string_view field, float value, const ParameterRange& range);
// A number of a range as a parameter, in the range too: one other than 0 stays one.
float ToParameter(double number);

Status ValidateSampling(const SamplingParams& params, int vocab_size);

// Calls ValidateSampling, and checks the other parameters. FAILED_PRECONDITION for stop strings
// without a tokenizer.
Status ValidateGenerate(const GenerateParams& params, int vocab_size, int32_t max_new_tokens,
                        bool has_tokenizer);

// Checks that `prompt` is not empty, has at most max_prompt_tokens tokens, and that every id is
// within the vocabulary.
Status ValidatePrompt(std::span<const int32_t> prompt, int vocab_size, int64_t max_prompt_tokens);

}  // namespace polysketch
