#include "engine/snapshot/snapshot.h"

#include <algorithm>

namespace polysketch {

std::shared_ptr<const SavedState> SavedState::AsBytes() const {
  auto saved = std::make_shared<SavedState>();
  saved->position = position;
  saved->bytes.reserve(saved_bytes());
  Write([&](std::span<const uint8_t> piece) {
    saved->bytes.insert(saved->bytes.end(), piece.begin(), piece.end());
  });
  return saved;
}

void TokenHistory::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) seen.Insert(token);
  const auto last = tokens.last(std::min(tokens.size(), kTail));
  tail.insert(tail.end(), last.begin(), last.end());
  if (tail.size() > kTail) tail.erase(tail.begin(), tail.end() - kTail);
}

}  // namespace polysketch
