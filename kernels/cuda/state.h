// States of sequences on the device.
//
// Layers with the same attention are a group (LayerGroup), which has its memory in pieces, each for all
// its layers and their kv heads; each layer, and in it each head, is contiguous. T is float under
// StateFormat::kF32, else bf16.
//
// Recurrent kinds: one piece, each head
//
//   S          [features][d]      float32; under kBf16 and kQ8 two planes of 16 bits, first all upper
//                                 and then all lower ones (kernels/state_planes.h)
//   z          [features]         float32
//   copy                          kQ8: what queries read of S (kernels/cuda/mx_int8.h)
//   far_keys   [b][far_dim]  T    sketches or feature maps of the current block
//   near_keys  [b][near_dim] T    near keys of the current block; in unmixed kinds the same array
//                                 as far_keys
//   values     [b][d]        T    values of the current block
//   decay_sums [b]                with a decay gate: float32 sums of the log decays of the block's
//                                 tokens, each from the first token on
//
// KV kinds: a piece is a block of b tokens, each head keys [b][d] and values [b][d], of T or, under kQ8, of 8-bit
// numbers (mx_int8.h). With a window there
// are the blocks of the sinks, and those that a token may still read (AttentionSpec::DroppedTokens). With a
// far part each head has far_keys [b][far_dim] before them, those of sinks zero, and the group S, z and
// copy in memory of their own.
//
// Saved with n tokens in the buffer, for each layer and head, without padding, as float32 values
// under every format:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [n][far_dim],
//              near_keys [n][near_dim] in mixed kinds, values [n][d], decay_sums [n] with a
//              decay gate
//   KV         S and z if there is a far state; far_keys [n][far_dim] with a far part, keys [n][d] and
//              values [n][d], with a decay gate decay_sums [n] of each block that is held
//
// Where all layers are one group, S and z of all layers of a far part and all layers of a block before the
// next block; else layer by layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/mx_int8.h"
#include "kernels/saved_state.h"

namespace polysketch::cuda {

// Offsets, in bytes, of the arrays of one head, each a multiple of 256.
struct HeadLayout {
  explicit HeadLayout(const AttentionSpec& spec);
  // Of rows of T or, if `bytes`, of 8-bit numbers.
  int64_t RowBytes(bool bytes, int64_t rows, int64_t width) const {
    return bytes ? MxBytes(rows, width) : rows * width * element;
  }

  bool copies = false;      // whether there is a copy
  int64_t z = 0, copy = 0;  // S is at 0
  int64_t sums = 0;         // bytes of S, z and copy, which KV kinds have in memory of their own
  // What queries read of S, and its bytes.
  int64_t read = 0, read_bytes = 0;
  int64_t far_keys = 0, near_keys = 0, values = 0, decay_sums = 0;
  int64_t size = 0;
  int64_t element = 4;  // bytes of a T
};

// The layers of a model that have one attention, and their memory in a state.
struct LayerGroup {
  AttentionSpec spec;
  HeadLayout layout;
  int64_t layers = 0;
  std::vector<uint8_t*> pieces = {};
  uint8_t* sums = nullptr;  // S and z of a far part
  int64_t dropped = 0;      // blocks that the window has left, after those of the sinks

  int64_t heads() const { return layers * spec.key_heads(); }
  size_t piece_bytes() const { return static_cast<size_t>(heads() * layout.size); }
  // Bytes of `sums`, 0 without a far part.
  size_t sums_bytes() const {
    return spec.far_part() ? static_cast<size_t>(heads() * layout.sums) : 0;
  }
  // Pieces of `tokens` tokens.
  int64_t PiecesFor(int64_t tokens) const { return spec.kv_cache() ? spec.CacheBlocks(tokens) : 1; }
};
// Without pieces. In the order of their first layers.
std::vector<LayerGroup> LayerGroups(std::span<const AttentionSpec> layers);

class CudaState final : public LayeredState {
 public:
  CudaState(Device* device, std::span<const AttentionSpec> layers);
  ~CudaState() override;

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  // A part is a layer, or all layers where they are one group.
  int parts() const override { return groups_.size() == 1 ? 1 : static_cast<int>(specs_.size()); }
  void CopyPart(int part, const SequenceState& other) override;
  void Truncate(int64_t position) override;
  size_t SavedBytes() const override { return SavedStateBytes(specs_, position()); }
  void SavePart(int part, std::span<uint8_t> out) const override;
  Status CheckSavedSize(int64_t position, size_t size) const override;
  Status LoadPart(int part, int64_t position, std::span<const uint8_t> bytes) override;

  // The group of layers with this attention.
  const LayerGroup& group(const AttentionSpec& spec) const;
  std::span<const LayerGroup> groups() const { return groups_; }
  // The place of a layer among those of its group.
  int PlaceOf(int layer) const { return places_[static_cast<size_t>(layer)]; }
  // Provides memory for the tokens [0, tokens) of a group, except those that were dropped.
  void Reserve(const AttentionSpec& spec, int64_t tokens);
  // Gives up the blocks of a group that are not read after `position` tokens.
  void Drop(const AttentionSpec& spec, int64_t position);

 private:
  // Some neighbouring heads of every piece of a group.
  struct Part {
    size_t group;
    int64_t first, heads;
  };
  Part PartAt(int part) const;
  // Bytes of a part among those of a saved state of `position` tokens.
  size_t PartBytes(int part, int64_t position) const;
  size_t PartOffset(int part, int64_t position) const;
  // Gives a group the pieces of a state of `position` tokens.
  void Fit(LayerGroup* group, int64_t position);
  // Gives a group `pieces` pieces.
  void Resize(LayerGroup* group, int64_t pieces);
  uint8_t* Take(size_t bytes);
  void Return(uint8_t* memory, size_t bytes);
  // Passes the saved values of S and z of one head to `values`. `host`: a copy.
  static void WalkSums(const LayerGroup& group, uint8_t* host, SavedValues* values);
  // Passes the saved values of `position` tokens in piece `index` to `values`, in order. `host`: a copy of
  // `heads` heads of the piece.
  static void Walk(const LayerGroup& group, int64_t position, int64_t index, int64_t heads,
                   uint8_t* host, SavedValues* values);

  Device* const device_;
  std::vector<LayerGroup> groups_;
  const bool pooled_;  // whether pieces are blocks of Device::TakeBlock, since some group grows
  std::vector<int> places_;  // of layers
};

size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens);
// Backend::ReadBytes.
int64_t ReadBytes(const AttentionSpec& spec, int64_t tokens);

}  // namespace polysketch::cuda
