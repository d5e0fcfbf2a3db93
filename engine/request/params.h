// How a completion samples and when it ends.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace polysketch {

// Fields as in vLLM's SamplingParams; ValidateSampling (engine/sampler/sampling_params.h) says
// which values are legal.
struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output
  float frequency_penalty = 0.0f;   // over output
  float presence_penalty = 0.0f;    // over output
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;  // unset: the engine chooses one and reports it in FinishEvent
  std::vector<int32_t> allowed_token_ids = {};  // empty: all
  // Sequences of tokens that the output does not contain (engine/sampler/token_rules.h).
  std::vector<std::vector<int32_t>> bad_words = {};

  bool has_penalties() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
  bool operator==(const SamplingParams&) const = default;
};

// What the text of an output must match (engine/grammar).
struct GrammarSource {
  // kJson: a JSON object. kJsonSchema: JSON that a JSON Schema describes. kRegex: a regular
  // expression. kEbnf: a grammar in EBNF whose first rule is `root`. kStructuralTag: JSON between
  // marks.
  enum class Kind : uint8_t { kJson, kJsonSchema, kRegex, kEbnf, kStructuralTag };
  Kind kind = Kind::kJson;
  std::string text;      // empty for kJson
  bool compact = false;  // of kinds with JSON: no white space but after ',' and ':'

  auto operator<=>(const GrammarSource&) const = default;
};

struct GenerateParams {
  SamplingParams sampling;
  // Unset: until a stop condition or the server's limit. 0: prefill only (with echo and logprobs:
  // scoring of the prompt).
  std::optional<int32_t> max_tokens;
  int32_t min_tokens = 0;         // neither end tokens nor stop strings end the output before
  std::vector<std::string> stop;  // matched on text; needs a tokenizer
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;  // control pieces add nothing to the text
  // Unset: no log-probabilities. k: those of the sampled token and of the k most likely tokens.
  std::optional<int32_t> logprobs;
  bool echo = false;  // prompt tokens first, with log-probabilities if `logprobs` is set
  // With echo and logprobs: index in the prompt of the first token with a log-probability. The
  // prefix cache may provide the tokens before it.
  int64_t logprobs_from = 0;
  // best_of choices are generated; the n of the highest cumulative log-probability are returned.
  int32_t n = 1;
  int32_t best_of = 1;  // >= n
  // Maximum draft tokens a step in speculative decoding. Unset: the engine's default. 0: no drafts.
  std::optional<int32_t> draft_tokens;
  // Needs a tokenizer and EOS, which ends an output that is complete.
  std::optional<GrammarSource> grammar;

  bool operator==(const GenerateParams&) const = default;
};

}  // namespace polysketch
