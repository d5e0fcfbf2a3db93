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

size_t Snapshot::bytes() const {
  return sizeof(*this) + (state == nullptr ? 0 : state->bytes.size()) +
         (pending.size() + tail.size()) * sizeof(int32_t);
}

std::vector<int32_t> LastTokens(std::span<const int32_t> tokens, std::span<const int32_t> more,
                                size_t most) {
  std::vector<int32_t> last;
  const size_t from_more = std::min(more.size(), most);
  const size_t from_tokens = std::min(tokens.size(), most - from_more);
  last.insert(last.end(), tokens.end() - static_cast<ptrdiff_t>(from_tokens), tokens.end());
  last.insert(last.end(), more.end() - static_cast<ptrdiff_t>(from_more), more.end());
  return last;
}

}  // namespace polysketch
