// The prompt tokens that a completion with `echo` returns before its output.
//
// Used by the engine thread only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "base/status.h"
#include "engine/request/events.h"
#include "engine/request/params.h"
#include "engine/sampler/logprobs.h"
#include "engine/scheduler/output_text.h"

namespace polysketch {

class PromptEcho {
 public:
  // `first`: index of the first token to return; tokens before it precede the prompt.
  // `scored_from`: index of the first token to return with a log-probability, if the parameters ask
  // for them.
  PromptEcho(const GenerateParams& params, int64_t first, int64_t scored_from)
      : enabled_(params.echo),
        logprobs_(params.logprobs),
        // No row precedes the first token.
        scored_from_(scores() ? std::max<int64_t>(1, scored_from) : kNever),
        next_(first) {}

  // Index of the first token that is returned with a log-probability, from the row of the token
  // before it; kNever: none is.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // Whether the parameters ask for log-probabilities.
  bool scores() const { return enabled_ && logprobs_.has_value(); }
  int64_t scored_from() const { return scored_from_; }
  // Index of the next token to return.
  int64_t next() const { return next_; }
  // Whether a token before `end` is still to be returned.
  bool due(int64_t end) const { return enabled_ && next_ < end; }

  // Returns the next token, which is `token`, without a log-probability.
  TokenEvent Next(int32_t token, OutputText* text) {
    ++next_;
    TokenEvent event;
    event.token = token;
    event.echoed = true;
    event.text = text->AppendEcho(token);
    return event;
  }
  // As Next, with the log-probability from the row before the token. INTERNAL if it is not finite.
  Result<TokenEvent> NextScored(int32_t token, std::span<const float> logits, float log_sum_exp,
                                OutputText* text) {
    if (!std::isfinite(log_sum_exp)) {
      return Internal("the model gave a logit that is not finite at token ", next_ - 1);
    }
    TokenEvent event = Next(token, text);
    const float logit = logits[static_cast<size_t>(token)];
    event.logprob = logit - log_sum_exp;
    event.rank = static_cast<int32_t>(
        std::ranges::count_if(logits, [logit](float other) { return other >= logit; }));
    event.top = TopLogprobs(logits, log_sum_exp, *logprobs_);
    return event;
  }

 private:
  const bool enabled_;
  const std::optional<int32_t> logprobs_;
  const int64_t scored_from_;
  int64_t next_;
};

}  // namespace polysketch
