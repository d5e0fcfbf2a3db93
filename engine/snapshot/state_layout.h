// Which of the saved bytes of a state (SequenceState::Save) belong to which blocks of tokens. The
// values of a full block of a KV cache do not change while its sequence goes on: what is stored
// apart from the rest of the state is written once.
//
// Splitting and joining are exact inverses for any bytes of the right size, whatever they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/byte_buffer.h"
#include "kernels/attention_spec.h"

namespace polysketch {

struct SavedState;

// A run of the saved bytes.
struct StatePiece {
  size_t group = 0;  // of blocks; the number of groups: the rest
  size_t offset = 0;
  size_t bytes = 0;
};

class StateLayout {
 public:
  // Of states without blocks.
  StateLayout() = default;
  // Of a model with these layers. A block is the largest block of the layers that keep all tokens,
  // and has whole blocks of each of them whose block divides it. All other bytes are the rest.
  // `block_order`: the state is saved block by block, each with all its layers, which are equal;
  // else layer by layer.
  StateLayout(std::span<const AttentionSpec> layers, bool block_order);

  bool has_blocks() const { return block_bytes_ > 0; }
  // Number of full blocks of a state of `position` tokens.
  int64_t FullBlocks(int64_t position) const { return has_blocks() ? position / block_ : 0; }
  // Bytes of a full block, of all layers. > 0 with blocks.
  size_t block_bytes() const { return block_bytes_; }
  // Bytes of the saved state, of which `position` tokens, >= 0, are known to fit into memory.
  size_t StateBytes(int64_t position) const;
  size_t RestBytes(int64_t position) const {
    return StateBytes(position) - static_cast<size_t>(FullBlocks(position)) * block_bytes_;
  }

  // Whether a saved state has the size that the layout tells.
  bool Fits(const SavedState& state) const;

  // The saved bytes in order. groups[i]: number of blocks of group i, > 0; their sum is
  // FullBlocks(position).
  std::vector<StatePiece> Pieces(int64_t position, std::span<const int64_t> groups) const;

  // Calls visit(group, bytes) for the saved bytes of `state`, in order.
  void Split(const SavedState& state, std::span<const int64_t> groups,
             const std::function<void(size_t group, std::span<const uint8_t> bytes)>& visit) const;
  // Copies the bytes of one group, or of the rest, to their places in a saved state. `bytes` has
  // all of them.
  static void Join(std::span<const StatePiece> pieces, size_t group, std::span<const uint8_t> bytes,
                   std::span<uint8_t> state);

 private:
  bool InBlocks(const AttentionSpec& layer) const {
    return layer.grows() && block_ % layer.block == 0;
  }

  std::vector<AttentionSpec> layers_;
  bool block_order_ = false;
  int64_t block_ = 0;  // tokens
  size_t block_bytes_ = 0;
};

}  // namespace polysketch
