// The log-probabilities that responses report: those of the model's own distribution (log-softmax
// of its logits, before bias, penalties, temperature and filters), as vLLM reports them by default.
#pragma once

#include <span>
#include <vector>

#include "engine/request/events.h"

namespace polysketch {

// Returns the `count` most likely tokens, most likely first, the lowest id first among equals.
// log_sum_exp is that of the row `logits`.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, float log_sum_exp, int count);

// Whether greedy sampling takes `token`: the most likely one, the lowest id among equals.
bool IsGreedy(std::span<const float> logits, int32_t token);

}  // namespace polysketch
