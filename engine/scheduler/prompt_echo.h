// The prompt tokens that a completion with `echo` returns before its output.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "engine/request/events.h"
#include "engine/request/params.h"
#include "engine/scheduler/output_text.h"

namespace polysketch {

class PromptEcho {
 public:
  explicit PromptEcho(const GenerateParams& params)
      : enabled_(params.echo), logprobs_(params.logprobs) {}

  // Whether tokens are returned with log-probabilities, each from the row of the token before it.
  bool scored() const { return enabled_ && logprobs_.has_value(); }
  // Index of the next token to return. Tokens before it were returned, or precede the prompt.
  int64_t next() const { return next_; }
  void set_next(int64_t next) { next_ = next; }
  // Whether a token before `end` is still to be returned.
  bool due(int64_t end) const { return enabled_ && next_ < end; }

  // Returns the next token, which is `token`, without a log-probability.
  TokenEvent Next(int32_t token, OutputText* text);
  // The same with the log-probability from the row before it. INTERNAL when that is not finite.
  Result<TokenEvent> NextScored(int32_t token, std::span<const float> logits, float log_sum_exp,
                                OutputText* text);

 private:
  const bool enabled_;
  const std::optional<int32_t> logprobs_;
  int64_t next_ = 0;
};

}  // namespace polysketch
