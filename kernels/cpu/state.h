// The recurrent state as the cpu backend keeps it. One allocation for a sequence; each layer, then
// each head, is contiguous:
//
//   S     [features][dp]  the far sum of phi(k) v^T. float32, or with StateFormat::kBf16 two planes
//   of 16 bits, all upper
//                         halves then all lower ones: a decode step reads the upper plane alone,
//                         half the bytes
//   z     [features]      the far sum of phi(k)
//   far_keys  [panels][far_dim][64]   the current block's sketches (or feature maps), transposed:
//                         lanes run over tokens, 64 in a panel, so that a part of a block is read
//                         front to back
//   near_keys [panels][near_dim][64]  its near keys; only in the mixed kinds, elsewhere the same
//                         array as far_keys
//   values    [b][dp]     its values
//
// With StateFormat::kBf16 values and the mixed kinds' near_keys are 16 bits wide.
//
// dp is d rounded up to 16, panels is ceil(b / 64); the padding is zero and stays zero. Feature
// order of the sketched kinds: for tiles I <= J of 8, for i in I, for j in J: product i j.
// Off-diagonal tiles count twice, on the query's side.
//
// Planes: upper = (bits + 0x8000) >> 16, the value rounded to bf16 (ties away from zero); lower =
// bits & 0xffff; bits = ((upper - (lower >> 15)) << 16) | lower, exact in both directions modulo
// 2^32.
//
// Saved (state_bytes.cc), n tokens in the buffer, per layer and head, without padding; S as float32
// values whatever the format, and the block's, so that a state can be read back under either:
//
//   recurrent  S [features][d] and z [features] if there is a far state, far_keys [far_dim][n],
//              near_keys [near_dim][n] in the mixed kinds, values [n][d]
//   KV         keys [d][n] and values [n][d] of each block
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/backend.h"

namespace polysketch::cpu {

// Tokens of a panel of keys: four vectors, the widest register tile.
inline constexpr int64_t kKeyPanel = 64;

// Where token t of row `row` stands in transposed keys of `dim` rows.
inline int64_t KeyIndex(int64_t dim, int64_t row, int64_t t) {
  return (t / kKeyPanel * dim + row) * kKeyPanel + t % kKeyPanel;
}

// Sizes and offsets in floats of one head's part of a state.
struct HeadLayout {
  explicit HeadLayout(const AttentionSpec& spec);

  int64_t padded_dim;                      // dp
  int64_t padded_block;                    // tokens of all key panels
  int64_t z, far_keys, near_keys, values;  // S stands at 0
  int64_t size;
};

// Pointers into one head of one layer of a recurrent state.
struct HeadState {
  float* s;  // float32, or the planes
  float* z;
  float* far_keys;
  float* near_keys;  // float32, or bf16 (narrow_block of a mixed kind)
  float* values;     // float32, or bf16 (narrow_block)
};

class RecurrentState final : public SequenceState {
 public:
  explicit RecurrentState(const AttentionSpec& spec);

  size_t bytes() const override { return memory_.size() * sizeof(float); }
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyFrom(const SequenceState& other) override;
  void Truncate(int64_t position) override;
  int64_t EarliestTruncation() const override { return spec_.EarliestTruncation(position()); }
  size_t SavedBytes() const override;
  int saved_parts() const override { return spec_.layers; }
  void SavePart(int layer, std::span<uint8_t> out) const override;
  Status Load(int64_t position, std::span<const uint8_t> bytes) override;

  HeadState Head(int layer, int head);

 private:
  const AttentionSpec spec_;
  const HeadLayout layout_;
  AlignedBuffer<float> memory_;
};

// softmax and polynomial: every key and value, in blocks of b tokens of all heads: [H] x (keys
// [d][bp], values [b][dp]).
class KvState final : public SequenceState {
 public:
  explicit KvState(const AttentionSpec& spec);

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyFrom(const SequenceState& other) override;
  void Truncate(int64_t position) override;
  int64_t EarliestTruncation() const override { return 0; }
  size_t SavedBytes() const override;
  int saved_parts() const override { return spec_.layers; }
  void SavePart(int layer, std::span<uint8_t> out) const override;
  Status Load(int64_t position, std::span<const uint8_t> bytes) override;

  // Makes room in a layer for tokens [0, tokens).
  void Reserve(int layer, int64_t tokens);
  float* Keys(int layer, int64_t block, int head);
  float* Values(int layer, int64_t block, int head);

  static int64_t BlockFloats(const AttentionSpec& spec);

 private:
  // Blocks for exactly that many tokens.
  void Resize(int layer, int64_t tokens);
  // Every saved value of a layer's first `position` tokens passes through `io`, in order.
  template <typename Io>
  void Transfer(int layer, int64_t position, Io* io);

  const AttentionSpec spec_;
  const HeadLayout layout_;
  std::vector<std::vector<AlignedBuffer<float>>> layers_;
};

std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec);
size_t StateBytes(const AttentionSpec& spec, int64_t tokens);

}  // namespace polysketch::cpu
