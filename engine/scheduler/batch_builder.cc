#include "engine/scheduler/batch_builder.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace polysketch {

void BatchBuilder::ShareDecoding(std::span<Candidate> candidates, std::span<int64_t> virtual_times,
                                 std::vector<int64_t>* tokens, int64_t* left) {
  std::vector<size_t> order;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].decoding) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return candidates[a].last_turn < candidates[b].last_turn;
  });
  order.resize(std::min(order.size(), static_cast<size_t>(*left)));
  *left -= static_cast<int64_t>(order.size());
  for (const size_t i : order) {
    const int64_t drafts = std::min(candidates[i].ready - 1, *left);
    *left -= drafts;
    (*tokens)[i] = 1 + drafts;
    Charge(candidates[i], (*tokens)[i], virtual_times);
    candidates[i].last_turn = ++turn_;
  }
}

size_t BatchBuilder::NextPrompt(std::span<const Candidate> candidates,
                                const std::vector<bool>& served,
                                std::span<const int64_t> virtual_times) {
  const auto rank = [&](size_t i) {
    const Candidate& c = candidates[i];
    return std::tuple(-static_cast<int64_t>(c.priority), virtual_times[c.client],
                      c.part < 0 ? 0 : virtual_times[static_cast<size_t>(c.part)], -c.level,
                      c.last_turn);
  };
  size_t next = candidates.size();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (served[i]) continue;
    if (next == candidates.size() || rank(i) < rank(next)) next = i;
  }
  return next;
}

int64_t BatchBuilder::Affordable(double budget, double cost) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 2;
  const double tokens = budget / cost;
  return tokens < static_cast<double>(kMax) ? static_cast<int64_t>(std::max(0.0, tokens)) : kMax;
}

std::vector<int64_t> BatchBuilder::Share(std::span<Candidate> candidates, double budget,
                                         std::span<int64_t> virtual_times) {
  std::vector<int64_t> tokens(candidates.size(), 0);
  int64_t left = max_tokens_;
  ShareDecoding(candidates, virtual_times, &tokens, &left);

  std::vector<bool> served(candidates.size());  // which get no more tokens
  for (size_t i = 0; i < candidates.size(); ++i) served[i] = candidates[i].decoding;
  bool first = true;  // no prompt has had a token
  while (left > 0) {
    const size_t next = NextPrompt(candidates, served, virtual_times);
    if (next == candidates.size()) break;
    Candidate& candidate = candidates[next];
    const double surcharge = tokens[next] == 0 ? candidate.surcharge : 0;
    int64_t affordable = Affordable(budget - surcharge, candidate.cost);
    if (first) affordable = std::max(affordable, kMinTokens);
    if (affordable < (surcharge > 0 ? kMinTokens : 1)) {
      served[next] = true;  // the rest in a later step, perhaps as the first prompt
      continue;
    }
    const int64_t chunk = std::min({kMinChunk, candidate.ready - tokens[next], left, affordable});
    tokens[next] += chunk;
    left -= chunk;
    budget -= surcharge + static_cast<double>(chunk) * candidate.cost;
    first = false;
    served[next] = tokens[next] == candidate.ready;
    Charge(candidate, chunk, virtual_times);
    candidate.last_turn = ++turn_;
  }
  return tokens;
}

}  // namespace polysketch
