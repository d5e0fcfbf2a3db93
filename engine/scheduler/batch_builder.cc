#include "engine/scheduler/batch_builder.h"

#include <algorithm>

namespace polysketch {

std::vector<size_t> BatchBuilder::Rotation(std::span<const Candidate> candidates, bool decoding,
                                           uint64_t last) {
  std::vector<size_t> order;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].decoding == decoding) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return candidates[a].id < candidates[b].id; });
  const auto next =
      std::find_if(order.begin(), order.end(), [&](size_t i) { return candidates[i].id > last; });
  std::rotate(order.begin(), next, order.end());
  return order;
}

void BatchBuilder::Share(std::span<const Candidate> candidates, std::vector<int64_t>* tokens) {
  tokens->assign(candidates.size(), 0);
  int64_t left = max_tokens_;

  for (const size_t i : Rotation(candidates, true, last_decoding_)) {
    if (left == 0) break;
    (*tokens)[i] = 1;
    --left;
    last_decoding_ = candidates[i].id;
  }

  const std::vector<size_t> prefill = Rotation(candidates, false, last_prefill_);
  if (prefill.empty() || left == 0) return;
  const int64_t share = std::max(kMinChunk, left / static_cast<int64_t>(prefill.size()));
  size_t served = 0;
  for (; served < prefill.size() && left > 0; ++served) {
    const size_t i = prefill[served];
    (*tokens)[i] = std::min({candidates[i].ready, share, left});
    left -= (*tokens)[i];
  }
  // With everyone served the next step begins one further, so that the remainder below goes round
  // too.
  last_prefill_ = candidates[served < prefill.size() ? prefill[served - 1] : prefill.front()].id;
  for (const size_t i : prefill) {
    const int64_t more = std::min(candidates[i].ready - (*tokens)[i], left);
    (*tokens)[i] += more;
    left -= more;
  }
}

}  // namespace polysketch
