#include "engine/scheduler/prompt_echo.h"

#include <cmath>

#include "engine/sampler/logprobs.h"

namespace polysketch {

TokenEvent PromptEcho::Next(int32_t token, OutputText* text) {
  ++next_;
  TokenEvent event;
  event.token = token;
  event.echoed = true;
  event.text = text->AppendEcho(token);
  return event;
}

Result<TokenEvent> PromptEcho::NextScored(int32_t token, std::span<const float> logits,
                                          float log_sum_exp, OutputText* text) {
  if (!std::isfinite(log_sum_exp)) {
    return Internal("the model gave a logit that is not finite at token ", next_ - 1);
  }
  TokenEvent event = Next(token, text);
  event.logprob = logits[static_cast<size_t>(token)] - log_sum_exp;
  event.top = TopLogprobs(logits, log_sum_exp, *logprobs_);
  return event;
}

}  // namespace polysketch
