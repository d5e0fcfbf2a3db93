// States of sequences in the cpu backend.
//
// Recurrent kinds: one allocation for all layers of a sequence; each layer, and in it each head of
// keys and values, is contiguous.
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
// anything, and after Reset the old S and z, until it is cleared: by ClearPart, or before the layer
// is used. Features of sketched kinds, in order: for tiles I <= J of 8, for i in I, for j in J: the
// product x_i x_j. Products of off-diagonal tiles count twice; the query's side multiplies them by
// 2.
//
// KV kinds: blocks of b tokens of all kv heads, each head keys [panels][d][64] and values [b][dp],
// of float32, float16 (kF16) or 8-bit integers (kQ8), then with scales [panels][64] of keys and of
// values (kernels/kv_rounding.h). A layer with a window holds the blocks of its sinks and those
// that a token may still read (AttentionSpec::DroppedTokens). Its far part has float32 far keys
// [panels][far_dim][64], and with a decay gate decay_sums, in these blocks, and the memory of a
// recurrent layer: S and z, and a block buffer for the block that is being folded. States share blocks: a copy of a state holds the same
// blocks. A block that states have shared is not written to again: a layer replaces it by a copy
// first.
//
// Saved with n tokens in the buffer, for each layer and head, without padding, as float32 values
// under every format, so that a state can be loaded under another one:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [far_dim][n],
//              near_keys [near_dim][n] in mixed kinds, values [n][d], decay_sums [n] with a
//              decay gate
//   KV         keys [d][n] and values [n][d] of each block that is held; with a far part S and z
//              before, if there is a far state, far keys [far_dim][n] first in each block, and with
//              a decay gate decay_sums [n] last
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
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

class RecurrentLayer final : public HostLayer {
 public:
  // memory: Floats(spec) floats, aligned, of any value.
  RecurrentLayer(const AttentionSpec& spec, float* memory);
  static int64_t Floats(const AttentionSpec& spec) {
    return spec.key_heads() * HeadLayout(spec).size;
  }

  size_t bytes() const override { return static_cast<size_t>(floats()) * sizeof(float); }
  void Reset() override;
  void Truncate(int64_t /*position*/) override {}  // tokens from the position on are never read
  void Clear() override;
  bool cleared() const override { return contents_ == Contents::kCurrent; }
  void CopyFrom(const HostLayer& other, int64_t position) override;
  size_t SavedBytes(int64_t position) const override;
  void Prepare(int64_t position) override;
  void Walk(int64_t position, SavedValues* values) override;
  // The part of Prepare and Walk that is S and z. summed: whether they are not zero.
  void PrepareSums(bool summed);
  void WalkSums(SavedValues* values);

  // The layer has been cleared.
  HeadState Head(int head);
  // Whether what is read of the head must be made before, from S and the block buffer, because they
  // were loaded. False from then on. Threads may call it for different heads.
  bool TakeStaleCopy(int head) { return std::exchange(stale_copies_[head], 0) != 0; }

 private:
  // What the memory holds.
  enum class Contents : uint8_t {
    kAnything,  // it has never been used
    kOld,       // what a sequence before Reset left: all is finite, padding is zero
    kCurrent,   // what belongs to the sequence
  };
  int64_t floats() const { return spec_.key_heads() * layout_.size; }

  const HeadLayout layout_;
  float* const memory_;
  Contents contents_ = Contents::kAnything;
  std::vector<uint8_t> stale_copies_;  // [kv heads]: 1 or 0
};

// KV kinds.
class KvLayer final : public HostLayer {
 public:
  explicit KvLayer(const AttentionSpec& spec);

  size_t bytes() const override {
    return blocks_.size() * block_bytes() + (far_ ? far_->bytes() : 0);
  }
  std::vector<StateBlock> Blocks() const override;
  size_t BytesToCopy(int64_t position) const override;
  void Reset() override;
  void Truncate(int64_t position) override { Resize(position); }
  void Clear() override {
    if (far_) far_->Clear();
  }
  bool cleared() const override { return !far_ || far_->cleared(); }
  void CopyFrom(const HostLayer& other, int64_t position) override;
  size_t SavedBytes(int64_t position) const override;
  void Prepare(int64_t position) override;
  void Walk(int64_t position, SavedValues* values) override;

  // Allocates the blocks for tokens [0, tokens), except those that were dropped. Those from
  // `position` on can be written then.
  void Reserve(int64_t position, int64_t tokens);
  // Frees the blocks that are not read after `position` tokens.
  void Drop(int64_t position);
  // Of a block, counted from the first token of the sequence.
  // Element: of 4, 2 or 1 bytes, as AttentionSpec::cache_width.
  template <typename Element>
  Element* Keys(int64_t block, int head) {
    return reinterpret_cast<Element*>(Head(block, head) + layout_.near_keys);
  }
  template <typename Element>
  Element* Values(int64_t block, int head) {
    return reinterpret_cast<Element*>(Head(block, head) + layout_.values);
  }
  float* FarKeys(int64_t block, int head) { return Head(block, head) + layout_.far_keys; }
  // With a decay gate: of the block's tokens, as HeadState::decay_sums.
  float* DecaySums(int64_t block, int head) { return Head(block, head) + layout_.decay_sums; }
  // The sums of the far part: a layer of AttentionSpec::FarPart.
  RecurrentLayer& far() { return *far_; }
  // StateFormat::kQ8.
  float* KeyScales(int64_t block, int head) { return Head(block, head) + layout_.key_scales; }
  float* ValueScales(int64_t block, int head) { return Head(block, head) + layout_.value_scales; }

  static int64_t BlockFloats(const AttentionSpec& spec);
  // Of the far part; 0 without one.
  static int64_t FarFloats(const AttentionSpec& spec) {
    return spec.far_part() ? RecurrentLayer::Floats(spec.FarPart()) : 0;
  }

 private:
  struct Block {
    explicit Block(AlignedBuffer<float> buffer) : floats(std::move(buffer)) {}
    AlignedBuffer<float> floats;
    std::atomic<bool> shared =
        false;  // whether several layers have held it: nothing writes to it again
  };

  size_t block_bytes() const { return BlockFloats(spec_) * sizeof(float); }
  std::shared_ptr<Block>& At(int64_t block) {
    return blocks_[static_cast<size_t>(block < sink_blocks_ ? block : block - dropped_)];
  }
  float* Head(int64_t block, int head) { return At(block)->floats.data() + head * layout_.size; }
  // Number of blocks that are held of `tokens` tokens.
  size_t BlocksFor(int64_t tokens) const {
    return static_cast<size_t>((tokens + spec_.block - 1) / spec_.block - dropped_);
  }
  // Gives the layer the blocks for exactly `tokens` tokens.
  void Resize(int64_t tokens);
  // Passes the keys and values of the first `tokens` tokens of a block to `values`.
  void WalkHalvesOrFloats(int64_t block, int head, int64_t tokens, SavedValues* values);
  // The same of a block of 8-bit integers.
  void WalkBytes(int64_t block, int head, int64_t tokens, SavedValues* values);

  const HeadLayout layout_;
  const int64_t sink_blocks_;
  int64_t dropped_ = 0;                         // blocks after those of the sinks
  std::vector<std::shared_ptr<Block>> blocks_;  // that are held, in order
  AlignedBuffer<float> far_memory_;
  std::optional<RecurrentLayer> far_;
};

class CpuState final : public HostState {
 public:
  explicit CpuState(std::span<const AttentionSpec> layers);

  std::unique_ptr<SequenceState> Clone() const override;
  // Without KV layers its saved values take less memory than a copy.
  bool shares() const override { return std::ranges::any_of(specs_, &AttentionSpec::kv_cache); }
  std::unique_ptr<SequenceState> NewSharing() const override {
    return std::make_unique<CpuState>(specs_);
  }
  bool CanCopy(const SequenceState& other) const override;
  RecurrentLayer& Recurrent(int layer) {
    return static_cast<RecurrentLayer&>(HostState::layer(layer));
  }
  KvLayer& Kv(int layer) { return static_cast<KvLayer&>(HostState::layer(layer)); }

 private:
  AlignedBuffer<float> memory_;  // of the recurrent layers
};

size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens);

}  // namespace polysketch::cpu
