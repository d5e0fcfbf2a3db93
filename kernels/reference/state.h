// The state of a sequence in the reference backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/saved_state.h"

namespace polysketch::reference {

// The state of one head of one layer. `capacity` is b, or for KV kinds a multiple of b.
struct HeadState {
  // Sums over all folded blocks: S [features, d] and z [features]. Stored as doubles; every value
  // is rounded to float32 unless the state is a float64 one.
  std::vector<double> value_sum;
  std::vector<double> weight_sum;
  // StateFormat::kQ8: what queries read in the place of value_sum.
  std::vector<float> copy;
  bool stale_copy = false;  // value_sum was loaded
  // The tokens that are not folded or dropped, in order: the current block, or those of a KV kind.
  std::vector<float> near_keys;  // [capacity, near_dim]
  std::vector<float> far_keys;   // [capacity, far_dim]; empty if they are the near keys, or none
  std::vector<float> values;     // [capacity, d]
  // G, the sum of the log decays from the block's first token on. Empty without a decay gate.
  std::vector<float> decay_sums;  // [capacity]
};

// Rows of S: all r * r products of a sketch, not packed, or m.
int64_t FeatureCount(const AttentionSpec& spec);

// phi(x) of a far row: x_i x_j for all i, j < r in sketched kinds, x itself in linear and
// performer.
std::vector<double> FarFeatures(const AttentionSpec& spec, const float* x);

// e^(G_t - G_s): what a decay gate keeps at the sum `later` of what was there at the sum `earlier`.
double DecayFactor(float later, float earlier);
void Scale(double factor, std::vector<double>* values);

// Saved, for each layer and head: S and z if there is a far state, then near_keys, far_keys, values
// and decay_sums of the buffered tokens. float64 states, which only measure drift, cannot be saved.
class ReferenceLayer final : public HostLayer {
 public:
  ReferenceLayer(const AttentionSpec& spec, bool float64);

  size_t bytes() const override;
  void Reset() override;
  void Truncate(int64_t position) override { SetBuffered(position); }
  void CopyFrom(const HostLayer& other, int64_t position) override;
  size_t SavedBytes(int64_t position) const override {
    return SavedLayerBytes(spec_, FeatureCount(spec_), position);
  }
  void Prepare(int64_t position) override;
  void Walk(int64_t position, SavedValues* values) override;

  HeadState& head(int head) { return heads_[static_cast<size_t>(head)]; }
  // Number of tokens in the buffers.
  int64_t buffered() const { return buffered_; }
  // The attention whose sums the heads have: the layer's, or that of its far part.
  const AttentionSpec& sums_spec() const { return sums_spec_; }
  // The position of the token at `index` of the buffers of a KV kind.
  int64_t TokenAt(int64_t index) const {
    return index < spec_.SinkTokens() ? index : index + dropped_;
  }
  // Makes room for one more token in every head and returns its index in the buffers.
  int64_t Append();
  // Removes what is not read after `position` tokens (AttentionSpec::DroppedTokens).
  void Drop(int64_t position);
  // StateFormat::kQ8: makes the copy of a head from its sums.
  void MakeCopy(HeadState* head) const;
  // Adds the full block to the sums and empties the buffers.
  void Fold();
  // Of a far part: adds the blocks that have left the window of token `t`, which is next.
  void FoldBefore(int64_t t);

 private:
  // Adds the `block` tokens from `first` on to the sums, but the first `skipped` of them.
  void FoldTokens(int64_t first, int64_t skipped);
  // Sets the buffers to the size that they have after `position` tokens.
  void SetBuffered(int64_t position);

  const bool float64_;
  const AttentionSpec sums_spec_;
  std::vector<HeadState> heads_;  // [kv heads]
  int64_t buffered_ = 0;
  int64_t dropped_ = 0;
  int64_t folded_ = 0;  // tokens of a far part
};

class ReferenceState final : public HostState {
 public:
  ReferenceState(std::span<const AttentionSpec> layers, bool float64);

  std::unique_ptr<SequenceState> Clone() const override;
  // A head of all tokens at a time.
  bool saves_blocks() const override { return false; }
  ReferenceLayer& layer(int index) { return static_cast<ReferenceLayer&>(HostState::layer(index)); }

 private:
  const bool float64_;
};

}  // namespace polysketch::reference
