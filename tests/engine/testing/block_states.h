// Saved states with blocks of tokens that they share, which take no memory: for tests of what is
// counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/snapshot/snapshot.h"

namespace polysketch::testing {

// Makes states. No block has the id of an earlier one.
class BlockStates {
 public:
  explicit BlockStates(size_t block_bytes) : block_bytes_(block_bytes) {}

  // A state of `tokens` tokens with the first `shared` blocks of `from` (null: none) and new ones,
  // of `blocks` in all.
  std::shared_ptr<const SavedState> Make(int64_t tokens, const SavedState* from, size_t shared,
                                         size_t blocks, size_t own) {
    auto state = std::make_shared<SavedState>();
    state->position = tokens;
    state->bytes.resize(own);
    for (size_t i = 0; i < blocks; ++i) {
      state->copy_memory.blocks.push_back(
          i < shared ? from->blocks()[i] : StateBlock{ids_.data() + next_++, block_bytes_});
    }
    states_.push_back(state);
    return state;
  }

  // The memory of the states that are not freed, each block once.
  size_t Held() {
    std::erase_if(states_, [](const auto& state) { return state.expired(); });
    std::map<const void*, size_t> blocks;
    size_t bytes = 0;
    for (const auto& weak : states_) {
      const auto state = weak.lock();
      bytes += state->own_bytes();
      for (const StateBlock& block : state->blocks()) blocks[block.id] = block.bytes;
    }
    for (const auto& [id, size] : blocks) bytes += size;
    return bytes;
  }

 private:
  const size_t block_bytes_;
  std::vector<char> ids_ = std::vector<char>(1 << 20);
  size_t next_ = 0;
  std::vector<std::weak_ptr<const SavedState>> states_;
};

}  // namespace polysketch::testing
