// Which sampling and generation parameters are legal. Every refusal is INVALID_ARGUMENT and names
// the field, what was expected and what was found.
#pragma once

#include <span>

#include "base/status.h"
#include "engine/request/params.h"

namespace polysketch {

// Limits of fields; those of vLLM and the OpenAI API where these have one.
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxRepetitionPenalty = 100.0f;
inline constexpr float kMaxAdditivePenalty = 2.0f;
inline constexpr float kMaxLogitBias = 100.0f;
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string
inline constexpr size_t kMaxStopTokens = 1024;
inline constexpr int kMaxChoices = 64;
// Tokens of all candidates of a best_of, which wait in memory until the last has ended.
inline constexpr int64_t kMaxRankedTokens = 1 << 20;
inline constexpr int kMaxDraftTokens = 64;

Status ValidateSampling(const SamplingParams& params, int vocab_size);

// ValidateSampling, and the rest of the parameters. FAILED_PRECONDITION for stop strings without a
// tokenizer.
Status ValidateGenerate(const GenerateParams& params, int vocab_size, int32_t max_new_tokens,
                        bool has_tokenizer);

// `prompt`: not empty, at most max_prompt_tokens, every id within the vocabulary.
Status ValidatePrompt(std::span<const int32_t> prompt, int vocab_size, int64_t max_prompt_tokens);

}  // namespace polysketch
