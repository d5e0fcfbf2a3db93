// The parts of a Snapshot that a running completion carries: the state that it started from, its
// input, and its token history. Makes the snapshot that continues the completion, and the snapshot
// that generates its choices again.
//
// Used by the engine thread only. Copies share the state and the input.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class Continuation {
 public:
  // `start` may be null: the empty sequence. `prompt` follows it.
  Continuation(const Snapshot* start, std::span<const int32_t> prompt, int vocab_size) {
    std::vector<int32_t> input;
    if (start != nullptr) {
      state_ = start->state;
      input = start->pending;
      history_ = start->history;
    } else {
      history_.seen = TokenSet(vocab_size);
    }
    input.insert(input.end(), prompt.begin(), prompt.end());
    input_ = std::make_shared<const std::vector<int32_t>>(std::move(input));
    history_.Append(prompt);
  }

  // Whether the sequence starts from a stored state.
  bool has_state() const { return state_ != nullptr; }
  int64_t start_position() const { return has_state() ? state_->position : 0; }
  // The stored state; null: the empty one.
  const std::shared_ptr<const SavedState>& state() const { return state_; }

  // Tokens to process before one is sampled: the pending tokens of `start`, then the prompt.
  const std::vector<int32_t>& input() const { return *input_; }
  int64_t input_size() const { return static_cast<int64_t>(input_->size()); }

  const TokenHistory& history() const { return history_; }
  // Adds a sampled token to the history.
  void Append(int32_t token) { history_.Append({&token, 1}); }

  // The sequence now. `state` is null before the stored state is loaded. last_token: the token that
  // is sampled and not yet processed; used once the input is processed.
  Snapshot Save(const SequenceState* state, int32_t last_token) const {
    const int64_t processed = state == nullptr ? 0 : state->position() - start_position();
    Snapshot snapshot{processed > 0 ? SavedState::Of(*state) : state_, {last_token}, history_, {}};
    if (processed < input_size()) {
      snapshot.pending.assign(input_->begin() + processed, input_->end());
    }
    return snapshot;
  }
  // The sequence before its input was processed.
  Snapshot Beginning(const Generation& generation) const {
    return {state_, *input_, history_, generation};
  }

 private:
  std::shared_ptr<const SavedState> state_;  // null: the empty state
  std::shared_ptr<const std::vector<int32_t>> input_;
  TokenHistory history_;
};

}  // namespace polysketch
