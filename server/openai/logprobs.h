// Log-probabilities in the form of OpenAI's completions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

// The text that a token adds, as a JSON string can hold it: bytes that are no UTF-8 become
// "bytes:\xe2\x82", a control token its piece. `tokenizer` null: "token_id:5".
std::string TokenText(const Tokenizer* tokenizer, int32_t id);

// {"tokens": [...], "token_logprobs": [...], "top_logprobs": [...], "text_offset": [...]} of one
// choice, to which deltas are added.
class Logprobs {
 public:
  explicit Logprobs(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // `delta` has a log-probability for each token.
  void Add(const v1::Delta& delta);
  // Returns what was added since the last call. Offsets count characters of the text of the choice,
  // to which control tokens add none.
  nlohmann::ordered_json Take();

 private:
  const Tokenizer* tokenizer_;
  int64_t offset_ = 0;
  bool at_start_ = true;  // of an echoed prompt, whose text has no space of a dummy prefix
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json token_logprobs_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json top_logprobs_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json text_offset_ = nlohmann::ordered_json::array();
};

}  // namespace polysketch
