#include "engine/sampler/logprobs.h"

#include <algorithm>

namespace polysketch {

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, float log_sum_exp, int count) {
  std::vector<TokenLogprob> top;
  const size_t size = std::min(static_cast<size_t>(std::max(count, 0)), logits.size());
  if (size == 0) return top;
  top.reserve(size + 1);
  // Insertion into a short sorted list: nearly every logit fails the one comparison with the last
  // element. Ids come in ascending order, so a strict comparison keeps the lowest id among equals.
  for (size_t i = 0; i < logits.size(); ++i) {
    if (top.size() == size && logits[i] <= top.back().logprob) continue;
    const auto place = std::find_if(top.begin(), top.end(),
                                    [&](const TokenLogprob& t) { return logits[i] > t.logprob; });
    top.insert(place, {static_cast<int32_t>(i), logits[i]});
    if (top.size() > size) top.pop_back();
  }
  for (TokenLogprob& t : top) t.logprob -= log_sum_exp;
  return top;
}

bool IsGreedy(std::span<const float> logits, int32_t token) {
  const auto id = static_cast<size_t>(token);
  const float logit = logits[id];
  // Without branches, so that the compiler vectorises the loops.
  bool beaten = false;
  for (size_t i = 0; i < id; ++i) beaten |= logits[i] >= logit;
  for (size_t i = id + 1; i < logits.size(); ++i) beaten |= logits[i] > logit;
  return !beaten;
}

}  // namespace polysketch
