// Bytes of snapshots in memory, where forks share a state: it counts once.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "base/check.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class MemoryLedger {
 public:
  void Add(const Snapshot* snapshot) {
    if (snapshot == nullptr) return;
    bytes_ += OwnBytes(*snapshot);
    const SavedState* state = snapshot->state.get();
    if (state != nullptr && ++states_[state] == 1) bytes_ += state->bytes.size();
  }
  void Remove(const Snapshot* snapshot) {
    if (snapshot == nullptr) return;
    bytes_ -= OwnBytes(*snapshot);
    const SavedState* state = snapshot->state.get();
    if (state == nullptr) return;
    const auto found = states_.find(state);
    PS_CHECK(found != states_.end());
    if (--found->second > 0) return;
    bytes_ -= state->bytes.size();
    states_.erase(found);
  }
  size_t bytes() const { return bytes_; }

 private:
  static size_t OwnBytes(const Snapshot& snapshot) {
    return snapshot.bytes() - (snapshot.state == nullptr ? 0 : snapshot.state->bytes.size());
  }

  std::unordered_map<const SavedState*, int> states_;
  size_t bytes_ = 0;
};

}  // namespace polysketch
