// Log-probabilities in the forms of OpenAI's completions and chat completions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

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

// Appends the tokens of an echo to the elements of an array, in vLLM's form of prompt_logprobs:
// null for a token without a log-probability, or {"ID": {"logprob", "rank", "decoded_token"}, ...},
// the token itself first, then the most likely ones.
void AppendPromptLogprobs(const v1::Delta& delta, int alternatives, const Tokenizer* tokenizer,
                          std::string* elements);

// The elements of the arrays of log-probabilities, each as text.
using LogprobColumns = std::array<std::string, 4>;

// The log-probabilities of one choice, to which deltas are added: as text, which takes a tenth of
// the memory of values.
class Logprobs {
 public:
  // kCompletion: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, an array each. An
  // offset counts the characters of the text of the choice before the one where the token begins.
  // kChat: {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}], "refusal": null}.
  enum class Form { kCompletion, kChat };

  // `as_ids`: the text of a token is "token_id:5". `alternatives`: most of each token.
  Logprobs(Form form, const Tokenizer* tokenizer, std::optional<IncrementalDecoder> decoder,
           bool as_ids = false, int alternatives = kMaxTopLogprobs)
      : form_(form),
        tokenizer_(tokenizer),
        as_ids_(as_ids),
        alternatives_(alternatives),
        decoder_(std::move(decoder)) {}

  // `delta` has a log-probability for each token. Returns the bytes of text that are added.
  int64_t Add(const v1::Delta& delta);
  // What was added since the last call.
  LogprobColumns TakeColumns() { return std::exchange(columns_, {}); }
  // The same as the text of an object, after `first`.
  std::string Take(const LogprobColumns& first = {});

 private:
  using Json = nlohmann::ordered_json;
  void Append(size_t column, const Json& element);
  void AddForCompletion(int32_t token, int64_t offset, const v1::TokenLogprob& logprob);
  void AddForChat(int32_t token, const v1::TokenLogprob& logprob);
  Json ChatToken(int32_t token, float logprob) const;
  int Alternatives(const v1::TokenLogprob& logprob) const {
    return std::min(alternatives_, logprob.top_size());
  }
  std::string Text(int32_t token) const { return TokenText(as_ids_ ? nullptr : tokenizer_, token); }

  Form form_;
  const Tokenizer* tokenizer_;
  bool as_ids_;
  int alternatives_;
  std::optional<IncrementalDecoder> decoder_;
  int64_t offset_ = 0;  // characters of the text of the tokens so far
  LogprobColumns columns_;
};

}  // namespace polysketch
