// Counts the bytes of snapshots in memory. A state that several snapshots share counts once.
//
// Used by one thread only.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "engine/snapshot/snapshot.h"

namespace polysketch {

class MemoryLedger {
 public:
  // Null is ignored.
  void Add(const Snapshot* snapshot) {
    if (snapshot == nullptr) return;
    bytes_ += snapshot->own_bytes();
    const SavedState* state = snapshot->state.get();
    if (state != nullptr && ++references_[state] == 1) bytes_ += state->bytes.size();
  }
  // `snapshot` was added, or is null.
  void Remove(const Snapshot* snapshot) {
    if (snapshot == nullptr) return;
    bytes_ -= snapshot->own_bytes();
    const SavedState* state = snapshot->state.get();
    if (state == nullptr || --references_.at(state) > 0) return;
    bytes_ -= state->bytes.size();
    references_.erase(state);
  }
  size_t bytes() const { return bytes_; }
  // Whether `snapshot`, which was added, has a state that it shares with no other one.
  bool OwnsState(const Snapshot& snapshot) const {
    const auto found = references_.find(snapshot.state.get());
    return found != references_.end() && found->second == 1;
  }

 private:
  std::unordered_map<const SavedState*, int> references_;
  size_t bytes_ = 0;
};

}  // namespace polysketch
