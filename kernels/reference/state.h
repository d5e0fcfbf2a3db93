// The past of a sequence in the reference backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention_spec.h"
#include "kernels/backend.h"

namespace polysketch::reference {

// What one head of one layer remembers.
struct HeadState {
  // Sums over all folded blocks: S [features, d] and its normaliser Z [features]. Doubles in
  // memory; unless the state is a float64 one, every value is rounded to a float32 number when it
  // is stored.
  std::vector<double> value_sum;
  std::vector<double> weight_sum;
  // The tokens not yet folded, in order: the current block, or everything for KV kinds.
  std::vector<float> near_keys;  // [capacity, near_dim]
  std::vector<float>
      far_keys;  // [capacity, far_dim], mixed kinds only: elsewhere they are the near keys
  std::vector<float> values;  // [capacity, d]
};

// Rows of S here: all r * r products of a sketch, unpacked, or m.
int64_t FeatureCount(const AttentionSpec& spec);

class ReferenceState final : public SequenceState {
 public:
  ReferenceState(const AttentionSpec& spec, bool float64);

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyFrom(const SequenceState& other) override;
  void Truncate(int64_t position) override;
  int64_t EarliestTruncation() const override { return spec_.EarliestTruncation(position()); }
  // Per layer and head: S [features, d] and Z [features] if there is a far state, then near_keys,
  // far_keys and values of the buffered tokens. Not for float64 states, which only measure drift.
  size_t SavedBytes() const override;
  void SavePart(int part, std::span<uint8_t> out) const override;
  Status Load(int64_t position, std::span<const uint8_t> bytes) override;

  const AttentionSpec& spec() const { return spec_; }
  HeadState& head(int layer, int head) { return heads_[layer * spec_.heads + head]; }
  // Tokens in the buffers of a layer.
  int64_t buffered(int layer) const { return buffered_[layer]; }
  // Makes room for one more token in every head of the layer; its index in the buffers.
  int64_t Append(int layer);
  // Adds the layer's full block to its sums and empties the buffers.
  void Fold(int layer);

 private:
  // Buffers of every layer for exactly what they hold after `position` tokens.
  void SetBuffered(int64_t position);
  // Every saved value of `position` tokens passes through `io`, in order.
  template <typename Io>
  void Transfer(int64_t position, Io* io);

  AttentionSpec spec_;
  bool float64_;
  std::vector<HeadState> heads_;   // [layers, heads]
  std::vector<int64_t> buffered_;  // [layers]
};

// Bytes of such a state after `tokens` tokens.
size_t StateBytes(const AttentionSpec& spec, int64_t tokens);

// phi(x) of a far row: x_i x_j for all i, j < r in the sketched kinds, x itself in linear and
// performer.
std::vector<double> FarFeatures(const AttentionSpec& spec, const float* x);

}  // namespace polysketch::reference
