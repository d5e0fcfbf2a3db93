// Counts the bytes of blocks that saved states share. A block counts once, whatever number of
// states holds it.
//
// Used by one thread only.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>

#include "kernels/sequence_state.h"

namespace polysketch {

class BlockLedger {
 public:
  // Adds the blocks of a state. Returns the bytes of the blocks that no other state has.
  size_t Add(std::span<const StateBlock> blocks) {
    size_t bytes = 0;
    for (const StateBlock& block : blocks) {
      if (++states_[block.id] == 1) bytes += block.bytes;
    }
    return bytes;
  }
  // Removes the blocks of a state that was added. Returns the bytes of the blocks that no other
  // state has.
  size_t Remove(std::span<const StateBlock> blocks) {
    size_t bytes = 0;
    for (const StateBlock& block : blocks) {
      const auto found = states_.find(block.id);
      if (--found->second > 0) continue;
      states_.erase(found);
      bytes += block.bytes;
    }
    return bytes;
  }
  // What Add would return.
  size_t BytesToAdd(std::span<const StateBlock> blocks) const { return BytesHeldBy(0, blocks); }
  // What Remove would return.
  size_t BytesToRemove(std::span<const StateBlock> blocks) const { return BytesHeldBy(1, blocks); }
  bool empty() const { return states_.empty(); }

 private:
  size_t BytesHeldBy(int states, std::span<const StateBlock> blocks) const {
    size_t bytes = 0;
    for (const StateBlock& block : blocks) {
      const auto found = states_.find(block.id);
      if ((found == states_.end() ? 0 : found->second) == states) bytes += block.bytes;
    }
    return bytes;
  }

  std::unordered_map<const void*, int> states_;  // number of them that hold a block, by its id
};

}  // namespace polysketch
