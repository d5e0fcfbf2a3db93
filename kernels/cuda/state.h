// States of sequences on the device.
//
// Recurrent kinds: one allocation; each layer, and in it each head, is contiguous. T is float, or
// bf16 under StateFormat::kBf16:
//
//   S          [features][d]      float32; under kBf16 two planes of 16 bits, first all upper and
//                                 then all lower ones (kernels/state_planes.h)
//   z          [features]         float32
//   far_keys   [b][far_dim]  T    sketches or feature maps of the current block
//   near_keys  [b][near_dim] T    near keys of the current block; in unmixed kinds the same array
//                                 as far_keys
//   values     [b][d]        T    values of the current block
//   decay_sums [b]                with a decay gate: float32 sums of the log decays of the block's
//                                 tokens, each from the first token on
//
// KV kinds: blocks of b tokens (Device::TakeBlock) for all layers and heads, each head keys [b][d]
// and values [b][d].
//
// Saved with n tokens in the buffer, for each layer and head, without padding, as float32 values
// under either format:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [n][far_dim],
//              near_keys [n][near_dim] in mixed kinds, values [n][d], decay_sums [n] with a
//              decay gate
//   KV         keys [n][d] and values [n][d] of each block
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/saved_state.h"

namespace polysketch::cuda {

// Offsets, in bytes, of the arrays of one head, each a multiple of 256.
struct HeadLayout {
  explicit HeadLayout(const AttentionSpec& spec);

  int64_t z = 0, far_keys = 0, near_keys = 0, values = 0, decay_sums = 0;  // S is at 0
  int64_t size = 0;
  int64_t element = 4;  // bytes of a T
};

// All layers have the same attention (BackendFeature::kMixedLayers).
class CudaState final : public LayeredState {
 public:
  CudaState(Device* device, std::span<const AttentionSpec> layers);
  ~CudaState() override;

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyPart(int part, const SequenceState& other) override;
  void Truncate(int64_t position) override;
  size_t SavedBytes() const override { return SavedStateBytes(specs_, position()); }
  void SavePart(int part, std::span<uint8_t> out) const override;
  Status CheckSavedSize(int64_t position, size_t size) const override;
  Status LoadPart(int part, int64_t position, std::span<const uint8_t> bytes) override;

  // Recurrent kinds: the memory of layer 0, head 0.
  uint8_t* memory() const { return memory_.data(); }
  // KV kinds: allocates blocks for tokens [0, tokens).
  void Reserve(int64_t tokens);
  const std::vector<uint8_t*>& blocks() const { return blocks_; }

 private:
  int64_t AllHeads() const { return std::ssize(specs_) * spec_.heads; }
  size_t block_bytes() const { return static_cast<size_t>(AllHeads() * layout_.size); }
  // Returns all blocks but the first `count` to the device.
  void KeepBlocks(size_t count);
  // The allocations of the state: memory_, or the blocks.
  struct Piece {
    uint8_t* data;
    size_t size;
  };
  std::vector<Piece> Pieces() const;
  // Passes the saved values of `position` tokens in piece `index` to `values`, in order. `heads` is
  // a copy of the piece on the host.
  void Walk(int64_t position, size_t index, uint8_t* heads, SavedValues* values) const;

  Device* const device_;
  const AttentionSpec spec_;
  const HeadLayout layout_;
  DeviceArray<uint8_t> memory_;
  std::vector<uint8_t*> blocks_;
};

size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens);

}  // namespace polysketch::cuda
