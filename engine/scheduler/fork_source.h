// The state that all choices of a request start from: that of its prompt without the last token.
// The last choice takes it over, so that a request with n choices holds at most n + 1 states.
//
// Used by the engine thread only.
#pragma once

#include <memory>
#include <utility>

#include "engine/model/state_pool.h"

namespace polysketch {

struct ForkSource {
  // Takes over a state of `pool` and the bytes reserved for it.
  ForkSource(StatePool* pool, std::unique_ptr<SequenceState> of, size_t bytes)
      : states(pool), state(std::move(of)), reserved(bytes) {}
  ~ForkSource() {
    if (state == nullptr) return;
    states->Release(std::move(state));
    states->Unreserve(reserved);
  }
  ForkSource(const ForkSource&) = delete;
  ForkSource& operator=(const ForkSource&) = delete;

  StatePool* const states;
  std::unique_ptr<SequenceState> state;  // null: taken over
  const size_t reserved;
  int readers = 0;  // StateLoaders that copy the state
};

}  // namespace polysketch
