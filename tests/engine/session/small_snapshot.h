// Snapshots with a state of a few bytes, for tests of the session table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/snapshot/snapshot.h"

namespace polysketch::testing {

inline constexpr int kVocab = 100;
inline constexpr size_t kStateBytes = 4000;

// A snapshot after `tokens` tokens whose state is kStateBytes of zeros.
inline std::shared_ptr<const Snapshot> At(int64_t tokens) {
  auto snapshot = std::make_shared<Snapshot>();
  auto state = std::make_shared<SavedState>();
  state->position = tokens - 1;
  state->bytes.resize(kStateBytes);
  snapshot->state = state;
  snapshot->pending = {5};
  snapshot->history.tail = {5};
  snapshot->history.seen = TokenSet(kVocab);
  snapshot->history.seen.Insert(5);
  return snapshot;
}

}  // namespace polysketch::testing
