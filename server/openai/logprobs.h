// Log-probabilities in the forms of OpenAI's completions and chat completions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler/sampling_params.h"
#include "engine/tokenizer/tokenizer.h"
#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

// The text that a token adds, as a JSON string can hold it: bytes that are no UTF-8 become
// "bytes:\xe2\x82", a control token its piece. `tokenizer` null: "token_id:5".
std::string TokenText(const Tokenizer* tokenizer, int32_t id);

// The decoder of the text that a completion of `request` returns, before its first token: after the
// prompt, or before it with echo. Unset without a tokenizer.
std::optional<IncrementalDecoder> TextDecoder(const Tokenizer* tokenizer,
                                              const v1::CompleteRequest& request);

// Appends the tokens of an echo to the elements of an array, in vLLM's form of prompt_logprobs: null for a token
// without a log-probability, or {"ID": {"logprob", "rank", "decoded_token"}, ...}, the token itself first, then
// the most likely ones.
void AppendPromptLogprobs(const v1::Delta& delta, int alternatives, const Tokenizer* tokenizer,
                          std::string* elements);

// The log-probabilities of one choice, to which deltas are added.
class Logprobs {
 public:
  // `as_ids`: the text of a token is "token_id:5". `alternatives`: most of each token.
  Logprobs(const Tokenizer* tokenizer, std::optional<IncrementalDecoder> decoder,
           bool as_ids = false, int alternatives = kMaxTopLogprobs)
      : tokenizer_(tokenizer),
        as_ids_(as_ids),
        alternatives_(alternatives),
        decoder_(std::move(decoder)) {}

  // `delta` has a log-probability for each token.
  void Add(const v1::Delta& delta);
  // Each returns what was added since the last call.
  // {"tokens": [...], "token_logprobs": [...], "top_logprobs": [...], "text_offset": [...]}. An offset
  // counts the characters of the text of the choice before the one in which the token begins.
  nlohmann::ordered_json TakeForCompletion();
  // {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}], "refusal": null}.
  nlohmann::ordered_json TakeForChat();

 private:
  struct Entry {
    int32_t token;
    int64_t offset;
    v1::TokenLogprob logprob;
  };
  nlohmann::ordered_json ChatToken(int32_t token, float logprob) const;

  std::string Text(int32_t token) const { return TokenText(as_ids_ ? nullptr : tokenizer_, token); }

  const Tokenizer* tokenizer_;
  bool as_ids_;
  int alternatives_;
  std::optional<IncrementalDecoder> decoder_;
  int64_t offset_ = 0;  // characters of the text of the tokens so far
  std::vector<Entry> entries_;
};

}  // namespace polysketch
