#include "engine/snapshot/snapshot.h"

#include <algorithm>

namespace polysketch {

std::shared_ptr<const SavedState> SavedState::Of(const SequenceState& state) {
  if (state.position() == 0) return nullptr;
  auto saved = std::make_shared<SavedState>();
  saved->position = state.position();
  saved->bytes.resize(state.SavedBytes());
  state.Save(saved->bytes);
  return saved;
}

void TokenHistory::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) seen.Insert(token);
  const auto last = tokens.last(std::min(tokens.size(), kTail));
  tail.insert(tail.end(), last.begin(), last.end());
  if (tail.size() > kTail) tail.erase(tail.begin(), tail.end() - kTail);
}

}  // namespace polysketch
