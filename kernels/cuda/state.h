// The past of a sequence on the device.
//
// Recurrent kinds: one allocation; each layer, then each head, is contiguous. T is float, or bf16
// with StateFormat::kBf16:
//
//   S          [features][d]      float32; or two planes of 16 bits, all upper halves then all
//                                 lower ones (kernels/cpu/state.h says how they make a float32)
//   z          [features]         float32
//   far_keys   [b][far_dim]  T    the current block's sketches or feature maps
//   near_keys  [b][near_dim] T    its near keys; in unmixed kinds the same array as far_keys
//   values     [b][d]        T
//
// KV kinds: blocks of b tokens (Device::TakeBlock), each for all layers and heads: keys [b][d],
// values [b][d].
//
// Saved (state_bytes.cu), n tokens in the buffer, per layer and head, without padding, everything
// as float32 values whatever the format:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [n][far_dim],
//              near_keys [n][near_dim] in the mixed kinds, values [n][d]
//   KV         keys [n][d] and values [n][d] of each block
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device.h"

namespace polysketch::cuda {

// Offsets in bytes of one head's part; every array begins at a multiple of 256.
struct HeadLayout {
  explicit HeadLayout(const AttentionSpec& spec);

  int64_t z = 0, far_keys = 0, near_keys = 0, values = 0;  // S stands at 0
  int64_t size = 0;
  int64_t element = 4;  // bytes of a T
};

class CudaState final : public SequenceState {
 public:
  CudaState(Device* device, const AttentionSpec& spec);
  ~CudaState() override;

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyFrom(const SequenceState& other) override;
  void Truncate(int64_t position) override;
  int64_t EarliestTruncation() const override { return spec_.EarliestTruncation(position()); }
  size_t SavedBytes() const override;
  void SavePart(int part, std::span<uint8_t> out) const override;
  Status Load(int64_t position, std::span<const uint8_t> bytes) override;

  const AttentionSpec& spec() const { return spec_; }
  // Recurrent kinds: layer 0, head 0.
  uint8_t* memory() const { return memory_.data(); }
  // KV kinds: makes room for tokens [0, tokens); the blocks.
  void Reserve(int64_t tokens);
  const std::vector<uint8_t*>& blocks() const { return blocks_; }

 private:
  size_t block_bytes() const;
  // Gives back all blocks but the first `count`.
  void KeepBlocks(size_t count);
  // Walks the saved values of `position` tokens through `io`, in order, over a copy on the host.
  template <typename Io>
  void Transfer(int64_t position, std::vector<std::vector<uint8_t>>* memory, Io* io) const;

  Device* const device_;
  const AttentionSpec spec_;
  const HeadLayout layout_;
  DeviceArray<uint8_t> memory_;
  std::vector<uint8_t*> blocks_;
};

size_t StateBytes(const AttentionSpec& spec, int64_t tokens);

}  // namespace polysketch::cuda
