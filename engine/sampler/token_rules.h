// Which tokens a request itself allows next, beside its grammar: allowed_token_ids, bad_words, and
// end tokens before min_tokens, with vLLM's meanings.
//
// A bad word is a sequence of tokens. Its last token is not allowed where the tokens of the output
// before it are the others. Tokens of the prompt do not count.
//
// At least one token is always allowed: a rule that would leave none does not hold for that token.
// A grammar goes before allowed_token_ids, these before bad_words, and these before min_tokens. So
// an output that its grammar has completed ends before min_tokens.
//
// The result is a function of the parameters and of the output so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/params.h"

namespace polysketch {

class TokenRules {
 public:
  TokenRules() = default;
  TokenRules(const SamplingParams& params, int vocab_size);

  // No token of `ids` is allowed among the first `tokens` tokens of the output.
  void SetMinimum(int64_t tokens, std::vector<int32_t> ids);

  // Whether a rule may forbid a token at this index of the output.
  bool Bind(int64_t index) const {
    return !allowed_.empty() || !bad_words_.empty() || index < min_tokens_;
  }
  // Returns the mask of the tokens that are allowed at this index, which Bind: that of the grammar
  // (empty: none) without those that the rules forbid. It is in `words`.
  std::span<const uint32_t> Mask(int64_t index, std::span<const uint32_t> grammar,
                                 std::vector<uint32_t>* words) const;

  // Takes a token of the output.
  void Accept(int32_t token);
  // The last tokens of the output, as many as bad words need.
  std::span<const int32_t> recent() const { return recent_; }

 private:
  // Forbids the last token of a bad word that the output so far begins.
  void AddForbidden(std::vector<int32_t>* ids) const;
  // Forbids `ids`, unless nothing is left then.
  void Forbid(std::span<const int32_t> ids, std::vector<uint32_t>* words) const;
  // Clears the bits beyond the vocabulary.
  void Trim(std::vector<uint32_t>* words) const;

  size_t vocab_size_ = 0;
  std::vector<uint32_t> allowed_;  // a mask; empty: all
  std::vector<std::vector<int32_t>> bad_words_;
  size_t longest_ = 0;           // of bad_words_, in tokens
  std::vector<int32_t> recent_;  // at most longest_ - 1
  int64_t min_tokens_ = 0;
  std::vector<int32_t> end_ids_;
};

}  // namespace polysketch
