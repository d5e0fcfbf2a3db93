// States of sequences in the cpu backend.
//
// Recurrent kinds: one allocation for a sequence; each layer, and in it each head, is contiguous.
//
//   S          [features][dp]             sum of phi(k) v^T over all folded blocks. float32; under
//                                         StateFormat::kBf16 two planes of 16 bits, first all upper
//                                         and then all lower ones (kernels/state_planes.h). A
//                                         decode step reads the upper plane alone: half the bytes
//   z          [features]                 sum of phi(k)
//   copy       [features / 2][dp][2]      StateFormat::kQ8: what queries read in the place of S,
//                                         8-bit integers in pairs of rows, and their scales: one of
//   row_scales [features]                 each row and one of each column (kernels/state_bytes.h).
//   column_scales [dp]                    Made anew by every fold and after a load
//   far_keys   [panels][far_dim][64]      sketches or feature maps of the current block,
//                                         transposed: lanes run over tokens, 64 in a panel, so that
//                                         a part of a block is read front to back
//   near_keys  [panels][near_dim][64]     near keys of the current block; in unmixed kinds the same
//                                         array as far_keys. Mixed kinds under kQ8: [b][near_dim]
//   values     [b][dp]                    values of the current block
//   key_bytes, key_scales,                StateFormat::kQ8: what queries read of the block buffer,
//   value_bytes, value_scales             8-bit integers with one scale for each token
//              [panels][near_dim / 2][64][2]   keys of mixed kinds in pairs of rows, and
//              [b / 2][dp][2]                  values in pairs of tokens; [panels][64] scales each
//   decay_sums [panels][64]               with a decay gate: float32 sums of the log decays of the
//                                         current block, from its first token to each
//
// Under kBf16 and kQ8 the values, and the near keys of mixed kinds, are bf16.
//
// dp is d rounded up to 16, panels is ceil(b / 64). Padding is zero. The memory of a layer holds
// anything, and after Reset the old S and z, until it is cleared: by ClearPart, or before the layer is
// used. Features of sketched kinds, in order: for tiles I <= J of 8, for i in I, for j in J: the product x_i x_j. Products of
// off-diagonal tiles count twice; the query's side multiplies them by 2.
//
// KV kinds: blocks of b tokens of all kv heads, each head keys [panels][d][64] and values [b][dp].
//
// Saved with n tokens in the buffer, for each layer and head, without padding, as float32 values
// under every format, so that a state can be loaded under another one:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [far_dim][n],
//              near_keys [near_dim][n] in mixed kinds, values [n][d], decay_sums [n] with a
//              decay gate
//   KV         keys [d][n] and values [n][d] of each block
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/saved_state.h"

namespace polysketch::cpu {

// Tokens of a panel of keys: four vectors, the widest register tile.
inline constexpr int64_t kKeyPanel = 64;

// Offset of token t of row `row` in transposed keys of `dim` rows.
inline int64_t KeyIndex(int64_t dim, int64_t row, int64_t t) {
  return (t / kKeyPanel * dim + row) * kKeyPanel + t % kKeyPanel;
}

// The same in bytes for pair `pair` of rows of transposed keys as 8-bit integers, of `pairs` pairs.
inline int64_t KeyPairIndex(int64_t pairs, int64_t pair, int64_t t) {
  return 2 * KeyIndex(pairs, pair, t);
}

// Sizes and offsets, in floats, of one head's part of a state.
struct HeadLayout {
  explicit HeadLayout(const AttentionSpec& spec);

  int64_t padded_dim;    // dp
  int64_t padded_block;  // 64 * panels
  // Offsets; S is at 0.
  int64_t z, column_scales, row_scales, copy, far_keys, near_keys, values, decay_sums;
  int64_t key_bytes, key_scales, value_bytes, value_scales;
  int64_t size;
};

// Pointers into one head of one layer of a recurrent state.
struct HeadState {
  float* s;  // float32, or two planes of 16 bits
  float* z;
  int8_t* copy;  // with row_scales and column_scales: spec.byte_copy()
  float* row_scales;
  float* column_scales;
  float* far_keys;
  float* near_keys;   // float32, or bf16 (narrow_block in mixed kinds)
  float* values;      // float32, or bf16 (narrow_block)
  float* decay_sums;  // null without a decay gate
  // spec.byte_copy(); keys in mixed kinds
  int8_t* key_bytes;
  float* key_scales;
  int8_t* value_bytes;
  float* value_scales;
};

class RecurrentState final : public HostState {
 public:
  explicit RecurrentState(const AttentionSpec& spec);

  size_t bytes() const override { return memory_.size() * sizeof(float); }
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyPart(int layer, const SequenceState& other) override;
  void ClearPart(int layer) override;
  bool cleared() const override;
  void Truncate(int64_t position) override;

  // The layer has been cleared.
  HeadState Head(int layer, int head);
  // Whether what is read of the head must be made before, from S and the block buffer, because they
  // were loaded. False from then on. Threads may call it for different heads.
  bool TakeStaleCopy(int layer, int head) {
    return std::exchange(stale_copies_[static_cast<size_t>(layer) * spec_.heads + head], 0) != 0;
  }

 private:
  // What the memory of a layer holds.
  enum class Contents : uint8_t {
    kAnything,  // it has never been used
    kOld,       // what a sequence before Reset left: all is finite, padding is zero
    kCurrent,   // what belongs to the sequence
  };
  void Prepare(int layer, int64_t position) override;
  void Walk(int layer, int64_t position, SavedValues* values) override;
  // The memory of a layer.
  int64_t layer_floats() const { return spec_.heads * layout_.size; }
  float* LayerMemory(int layer) { return memory_.data() + layer * layer_floats(); }
  const float* LayerMemory(int layer) const { return memory_.data() + layer * layer_floats(); }
  std::span<uint8_t> StaleCopies(int layer) {
    return std::span(stale_copies_).subspan(static_cast<size_t>(layer) * spec_.heads, spec_.heads);
  }

  const HeadLayout layout_;
  AlignedBuffer<float> memory_;
  std::vector<Contents> contents_;     // [layers]
  std::vector<uint8_t> stale_copies_;  // [layers][heads]: 1 or 0
};

// KV kinds.
class KvState final : public HostState {
 public:
  explicit KvState(const AttentionSpec& spec);

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyPart(int layer, const SequenceState& other) override;
  void Truncate(int64_t position) override;

  // Allocates the blocks of a layer for tokens [0, tokens).
  void Reserve(int layer, int64_t tokens);
  float* Keys(int layer, int64_t block, int head);
  float* Values(int layer, int64_t block, int head);

  static int64_t BlockFloats(const AttentionSpec& spec);

 private:
  // Gives a layer the blocks for exactly `tokens` tokens.
  void Resize(int layer, int64_t tokens);
  void Prepare(int layer, int64_t position) override { Resize(layer, position); }
  void Walk(int layer, int64_t position, SavedValues* values) override;

  const HeadLayout layout_;
  std::vector<std::vector<AlignedBuffer<float>>> layers_;
};

std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec);
size_t StateBytes(const AttentionSpec& spec, int64_t tokens);

}  // namespace polysketch::cpu
