// States of sequences in the cpu backend.
//
// Recurrent kinds: one allocation for a sequence; each layer, and in it each head, is contiguous.
//
//   S          [features][dp]             sum of phi(k) v^T over all folded blocks. float32; under
//                                         StateFormat::kBf16 two planes of 16 bits, first all upper
//                                         and then all lower ones (kernels/state_planes.h). A
//                                         decode step reads the upper plane alone: half the bytes
//   z          [features]                 sum of phi(k)
//   far_keys   [panels][far_dim][64]      sketches or feature maps of the current block,
//                                         transposed: lanes run over tokens, 64 in a panel, so that
//                                         a part of a block is read front to back
//   near_keys  [panels][near_dim][64]     near keys of the current block; in unmixed kinds the same
//                                         array as far_keys
//   values     [b][dp]                    values of the current block
//   decay_sums [panels][64]               with a decay gate: float32 sums of the log decays of the
//                                         current block, from its first token to each
//
// Under kBf16 the values, and the near keys of mixed kinds, are bf16.
//
// dp is d rounded up to 16, panels is ceil(b / 64). Padding is zero. Features of sketched kinds, in
// order: for tiles I <= J of 8, for i in I, for j in J: the product x_i x_j. Products of
// off-diagonal tiles count twice; the query's side multiplies them by 2.
//
// KV kinds: blocks of b tokens of all heads, each head keys [panels][d][64] and values [b][dp].
//
// Saved with n tokens in the buffer, for each layer and head, without padding, as float32 values
// under either format, so that a state can be loaded under the other one:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [far_dim][n],
//              near_keys [near_dim][n] in mixed kinds, values [n][d], decay_sums [n] with a
//              decay gate
//   KV         keys [d][n] and values [n][d] of each block
#pragma once

#include <cstdint>
#include <memory>
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

// Sizes and offsets, in floats, of one head's part of a state.
struct HeadLayout {
  explicit HeadLayout(const AttentionSpec& spec);

  int64_t padded_dim;                                  // dp
  int64_t padded_block;                                // 64 * panels
  int64_t z, far_keys, near_keys, values, decay_sums;  // offsets; S is at 0
  int64_t size;
};

// Pointers into one head of one layer of a recurrent state.
struct HeadState {
  float* s;  // float32, or two planes of 16 bits
  float* z;
  float* far_keys;
  float* near_keys;   // float32, or bf16 (narrow_block in mixed kinds)
  float* values;      // float32, or bf16 (narrow_block)
  float* decay_sums;  // null without a decay gate
};

class RecurrentState final : public HostState {
 public:
  explicit RecurrentState(const AttentionSpec& spec);

  size_t bytes() const override { return memory_.size() * sizeof(float); }
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyFrom(const SequenceState& other) override;
  void Truncate(int64_t position) override;

  HeadState Head(int layer, int head);

 private:
  void Prepare(int64_t position) override;
  void Walk(int layer, int64_t position, SavedValues* values) override;

  const HeadLayout layout_;
  AlignedBuffer<float> memory_;
};

// softmax and polynomial.
class KvState final : public HostState {
 public:
  explicit KvState(const AttentionSpec& spec);

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyFrom(const SequenceState& other) override;
  void Truncate(int64_t position) override;

  // Allocates the blocks of a layer for tokens [0, tokens).
  void Reserve(int layer, int64_t tokens);
  float* Keys(int layer, int64_t block, int head);
  float* Values(int layer, int64_t block, int head);

  static int64_t BlockFloats(const AttentionSpec& spec);

 private:
  // Gives every layer the blocks for exactly `tokens` tokens.
  void Resize(int64_t tokens);
  void Prepare(int64_t position) override { Resize(position); }
  void Walk(int layer, int64_t position, SavedValues* values) override;

  const HeadLayout layout_;
  std::vector<std::vector<AlignedBuffer<float>>> layers_;
};

std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec);
size_t StateBytes(const AttentionSpec& spec, int64_t tokens);

}  // namespace polysketch::cpu
