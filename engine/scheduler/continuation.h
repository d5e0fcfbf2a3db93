// The parts of a Snapshot that a running completion carries: the state that it started from, its
// input and output, and its token history. Makes the snapshot that continues the completion, and
// the snapshot that generates its choices again.
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
  // Adds a sampled token.
  void Append(int32_t token) {
    history_.Append({&token, 1});
    output_.push_back(token);
  }
  // The tokens that were sampled.
  const std::vector<int32_t>& output() const { return output_; }
  // Number of tokens of the input and of the output.
  int64_t size() const { return input_size() + static_cast<int64_t>(output_.size()); }
  // The tokens from `index` on, of the input and the output after it, up to the end of the input
  // or, from there on, of the output.
  std::span<const int32_t> From(int64_t index) const {
    const bool of_input = index < input_size();
    const std::span<const int32_t> tokens(of_input ? *input_ : output_);
    return tokens.subspan(static_cast<size_t>(of_input ? index : index - input_size()));
  }

  // The first `size` tokens of the input and the output.
  std::vector<int32_t> First(int64_t size) const {
    std::vector<int32_t> tokens = *input_;
    tokens.insert(tokens.end(), output_.begin(), output_.end());
    tokens.resize(static_cast<size_t>(size));
    return tokens;
  }

  // The sequence now. `saved` is its state; null: the state that it started from.
  Snapshot Save(const std::shared_ptr<const SavedState>& saved) const {
    const int64_t processed = saved == nullptr ? 0 : saved->position - start_position();
    Snapshot snapshot{saved == nullptr ? state_ : saved, {}, history_, {}};
    const std::span<const int32_t> rest = From(processed);
    snapshot.pending.assign(rest.begin(), rest.end());
    if (processed < input_size())
      snapshot.pending.insert(snapshot.pending.end(), output_.begin(), output_.end());
    return snapshot;
  }
  // The sequence before its input was processed.
  Snapshot Beginning(const Generation& generation) const {
    return {state_, *input_, history_, generation};
  }

 private:
  std::shared_ptr<const SavedState> state_;  // null: the empty state
  std::shared_ptr<const std::vector<int32_t>> input_;
  std::vector<int32_t> output_;
  TokenHistory history_;
};

}  // namespace polysketch
