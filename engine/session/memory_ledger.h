// Counts the bytes of snapshots in memory. A state that several snapshots share counts once, and so
// does a block that several states share.
//
// Used by one thread only.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "engine/snapshot/block_ledger.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class MemoryLedger {
 public:
  // Null is ignored.
  void Add(const Snapshot* snapshot) {
    if (snapshot == nullptr) return;
    bytes_ += snapshot->own_bytes();
    const SavedState* state = snapshot->state.get();
    if (state == nullptr || ++references_[state] > 1) return;
    bytes_ += state->own_bytes() + blocks_.Add(state->blocks());
  }
  // `snapshot` was added, or is null.
  void Remove(const Snapshot* snapshot) {
    if (snapshot == nullptr) return;
    bytes_ -= snapshot->own_bytes();
    const SavedState* state = snapshot->state.get();
    if (state == nullptr || --references_.at(state) > 0) return;
    bytes_ -= state->own_bytes() + blocks_.Remove(state->blocks());
    references_.erase(state);
  }
  size_t bytes() const { return bytes_; }
  // Whether `snapshot`, which was added, has a state that it shares with no other one.
  bool OwnsState(const Snapshot& snapshot) const {
    const auto found = references_.find(snapshot.state.get());
    return found != references_.end() && found->second == 1;
  }
  // By how much less bytes() is without `snapshot`, which was added.
  size_t BytesToRemove(const Snapshot& snapshot) const {
    if (!OwnsState(snapshot)) return snapshot.own_bytes();
    const SavedState& state = *snapshot.state;
    return snapshot.own_bytes() + state.own_bytes() + blocks_.BytesToRemove(state.blocks());
  }

 private:
  std::unordered_map<const SavedState*, int> references_;
  BlockLedger blocks_;
  size_t bytes_ = 0;
};

}  // namespace polysketch
