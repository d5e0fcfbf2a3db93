#include "engine/scheduler/continuation.h"

namespace polysketch {

Continuation::Continuation(const Snapshot* start, std::span<const int32_t> prompt, int vocab_size)
    : state_(start == nullptr ? nullptr : start->state) {
  std::vector<int32_t> input;
  if (start != nullptr) {
    input = start->pending;
    history_ = start->history;
  } else {
    history_.seen = TokenSet(vocab_size);
  }
  input.insert(input.end(), prompt.begin(), prompt.end());
  input_ = std::make_shared<const std::vector<int32_t>>(std::move(input));
  history_.Append(prompt);
}

Snapshot Continuation::Save(const SequenceState* state, int32_t last_token) const {
  const int64_t processed = state == nullptr ? 0 : state->position() - start_position();
  Snapshot snapshot{processed > 0 ? SavedState::Of(*state) : state_, {last_token}, history_, {}};
  if (processed < input_size()) snapshot.pending.assign(input_->begin() + processed, input_->end());
  return snapshot;
}

}  // namespace polysketch
