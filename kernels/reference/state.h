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
  // The tokens that are not folded, in order: the current block, or all tokens for KV kinds.
  std::vector<float> near_keys;  // [capacity, near_dim]
  std::vector<float> far_keys;   // [capacity, far_dim]; empty in unmixed kinds (the near keys)
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
class ReferenceState final : public HostState {
 public:
  ReferenceState(const AttentionSpec& spec, bool float64);

  size_t bytes() const override;
  std::unique_ptr<SequenceState> Clone() const override;
  void Reset() override;
  void CopyPart(int layer, const SequenceState& other) override;
  void Truncate(int64_t position) override;

  HeadState& head(int layer, int head) { return heads_[layer * spec_.key_heads() + head]; }
  // Number of tokens in the buffers of a layer.
  int64_t buffered(int layer) const { return buffered_[layer]; }
  // Makes room for one more token in every head of the layer and returns its index in the buffers.
  int64_t Append(int layer);
  // StateFormat::kQ8: makes the copy of a head from its sums.
  void MakeCopy(HeadState* head) const;
  // Adds the layer's full block to its sums and empties the buffers.
  void Fold(int layer);

 private:
  void ResetLayer(int layer);
  // Sets the buffers of a layer to the size that they have after `position` tokens.
  void SetBuffered(int layer, int64_t position);
  void Prepare(int layer, int64_t position) override;
  void Walk(int layer, int64_t position, SavedValues* values) override;

  const bool float64_;
  std::vector<HeadState> heads_;   // [layers, kv heads]
  std::vector<int64_t> buffered_;  // [layers]
};

}  // namespace polysketch::reference
