#include "kernels/reference/state.h"

#include <cmath>

#include "base/check.h"
#include "kernels/reference/backend.h"
#include "kernels/state_bytes.h"

namespace polysketch::reference {
namespace {

void Resize(const AttentionSpec& spec, int64_t tokens, HeadState* head) {
  head->near_keys.resize(tokens * spec.near_dim());
  if (spec.mixed()) head->far_keys.resize(tokens * spec.far_dim());
  head->values.resize(tokens * spec.head_dim);
  if (spec.decay_gate) head->decay_sums.resize(tokens);
}

}  // namespace

int64_t FeatureCount(const AttentionSpec& spec) {
  if (spec.kv_cache()) return 0;
  return spec.sketched() ? int64_t{spec.sketch_size} * spec.sketch_size : spec.num_features;
}

std::vector<double> FarFeatures(const AttentionSpec& spec, const float* x) {
  if (!spec.sketched()) return std::vector<double>(x, x + spec.num_features);
  std::vector<double> features;
  features.reserve(FeatureCount(spec));
  for (int i = 0; i < spec.sketch_size; ++i) {
    for (int j = 0; j < spec.sketch_size; ++j) {
      features.push_back(static_cast<double>(x[i]) * x[j]);
    }
  }
  return features;
}

double DecayFactor(float later, float earlier) {
  return std::exp(static_cast<double>(later) - earlier);
}

void Scale(double factor, std::vector<double>* values) {
  for (double& value : *values) value *= factor;
}

ReferenceState::ReferenceState(const AttentionSpec& spec, bool float64)
    : HostState(spec, FeatureCount(spec)),
      float64_(float64),
      heads_(spec.layers * spec.key_heads()),
      buffered_(spec.layers) {
  PS_CHECK(spec.block > 0);
  PS_CHECK(spec.kv_cache() || spec.key_heads() == spec.heads)
      << "grouped queries in a recurrent kind";
  Reset();
}

void ReferenceState::ResetLayer(int layer) {
  for (int h = 0; h < spec_.key_heads(); ++h) {
    HeadState& state = head(layer, h);
    state.value_sum.assign(FeatureCount(spec_) * spec_.head_dim, 0.0);
    state.weight_sum.assign(FeatureCount(spec_), 0.0);
    if (spec_.byte_copy()) state.copy.assign(state.value_sum.size(), 0.0f);
    state.stale_copy = false;
    Resize(spec_, spec_.kv_cache() ? 0 : spec_.block, &state);
  }
  buffered_[layer] = 0;
}

void ReferenceState::Reset() {
  for (int layer = 0; layer < spec_.layers; ++layer) ResetLayer(layer);
  set_position(0);
}

size_t ReferenceState::bytes() const {
  size_t total = 0;
  for (const HeadState& head : heads_) {
    total += (head.value_sum.size() + head.weight_sum.size()) * sizeof(double);
    total += (head.near_keys.size() + head.far_keys.size() + head.values.size() +
              head.decay_sums.size() + head.copy.size()) *
             sizeof(float);
  }
  return total;
}

std::unique_ptr<SequenceState> ReferenceState::Clone() const {
  return std::make_unique<ReferenceState>(*this);
}

void ReferenceState::CopyPart(int layer, const SequenceState& other) {
  const auto& from = static_cast<const ReferenceState&>(other);
  PS_CHECK(from.heads_.size() == heads_.size()) << "a state of another model";
  const auto first = static_cast<ptrdiff_t>(layer) * spec_.key_heads();
  std::copy_n(from.heads_.begin() + first, spec_.key_heads(), heads_.begin() + first);
  buffered_[layer] = from.buffered_[layer];
}

void ReferenceState::Truncate(int64_t position) {
  PS_CHECK(position >= EarliestTruncation() && position <= this->position()) << position;
  for (int layer = 0; layer < spec_.layers; ++layer) SetBuffered(layer, position);
  set_position(position);
}

void ReferenceState::SetBuffered(int layer, int64_t position) {
  buffered_[layer] = spec_.BufferedTokens(position);
  if (!spec_.kv_cache()) return;
  const int64_t blocks = (position + spec_.block - 1) / spec_.block;
  for (int h = 0; h < spec_.key_heads(); ++h) Resize(spec_, blocks * spec_.block, &head(layer, h));
}

int64_t ReferenceState::Append(int layer) {
  const int64_t index = buffered_[layer]++;
  if (spec_.kv_cache() && index % spec_.block == 0) {
    for (int h = 0; h < spec_.key_heads(); ++h) Resize(spec_, index + spec_.block, &head(layer, h));
  }
  return index;
}

void ReferenceState::Fold(int layer) {
  PS_CHECK(!spec_.kv_cache() && buffered_[layer] == spec_.block);
  const int d = spec_.head_dim;
  const auto store = [this](double sum) { return float64_ ? sum : static_cast<float>(sum); };
  for (int h = 0; h < spec_.key_heads(); ++h) {
    HeadState& state = head(layer, h);
    const std::vector<float>& keys = spec_.mixed() ? state.far_keys : state.near_keys;
    // The sum of the block from zero, in token order: sum_s phi(k_s) [v_s, 1]^T.
    std::vector<double> block_values(state.value_sum.size());
    std::vector<double> block_weights(state.weight_sum.size());
    for (int s = 0; s < spec_.block; ++s) {
      std::vector<double> features = FarFeatures(spec_, &keys[s * spec_.far_dim()]);
      if (spec_.decay_gate)
        Scale(DecayFactor(state.decay_sums.back(), state.decay_sums[s]), &features);
      const float* kept = &state.values[s * d];
      const std::vector<float> value =
          spec_.byte_copy() ? ByteVector(kept, d) : std::vector<float>(kept, kept + d);
      for (size_t f = 0; f < features.size(); ++f) {
        block_weights[f] += features[f];
        for (int i = 0; i < d; ++i) block_values[f * d + i] += features[f] * value[i];
      }
    }
    // Each sum is added to the state once.
    const double kept = spec_.decay_gate ? DecayFactor(state.decay_sums.back(), 0) : 1;
    for (size_t i = 0; i < block_values.size(); ++i) {
      state.value_sum[i] = store(kept * state.value_sum[i] + block_values[i]);
    }
    for (size_t f = 0; f < block_weights.size(); ++f) {
      state.weight_sum[f] = store(kept * state.weight_sum[f] + block_weights[f]);
    }
    MakeCopy(&state);
  }
  buffered_[layer] = 0;
}

void ReferenceState::MakeCopy(HeadState* head) const {
  if (!spec_.byte_copy()) return;
  const std::vector<float> sums(head->value_sum.begin(), head->value_sum.end());
  head->copy = ByteCopy(sums, FeatureCount(spec_), spec_.head_dim);
  head->stale_copy = false;
}

void ReferenceState::Prepare(int layer, int64_t position) {
  ResetLayer(layer);
  SetBuffered(layer, position);
  for (int h = 0; h < spec_.key_heads(); ++h) head(layer, h).stale_copy = spec_.byte_copy();
}

void ReferenceState::Walk(int layer, int64_t position, SavedValues* values) {
  PS_CHECK(!float64_) << "a float64 state cannot be saved";
  const int64_t n = spec_.BufferedTokens(position);
  for (int h = 0; h < spec_.key_heads(); ++h) {
    HeadState& state = head(layer, h);
    if (spec_.HasFarState(position)) {
      values->Doubles(state.value_sum.data(), std::ssize(state.value_sum));
      values->Doubles(state.weight_sum.data(), std::ssize(state.weight_sum));
    }
    values->Floats(state.near_keys.data(), n * spec_.near_dim());
    if (spec_.mixed()) values->Floats(state.far_keys.data(), n * spec_.far_dim());
    values->Floats(state.values.data(), n * spec_.head_dim);
    if (spec_.decay_gate) values->Floats(state.decay_sums.data(), n);
  }
}

std::unique_ptr<SequenceState> ReferenceBackend::NewState(const AttentionSpec& spec) {
  return std::make_unique<ReferenceState>(spec, float64_state_);
}

size_t ReferenceBackend::StateBytes(const AttentionSpec& spec, int64_t tokens) const {
  const int64_t blocks = spec.kv_cache() ? (tokens + spec.block - 1) / spec.block : 1;
  const int64_t copy = spec.byte_copy() ? FeatureCount(spec) * spec.head_dim * sizeof(float) : 0;
  const int64_t head_bytes = FeatureCount(spec) * (spec.head_dim + 1) * sizeof(double) + copy +
                             blocks * spec.block * spec.TokenFloats() * sizeof(float);
  return spec.layers * spec.key_heads() * head_bytes;
}

}  // namespace polysketch::reference
