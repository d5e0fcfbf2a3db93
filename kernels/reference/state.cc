#include "kernels/reference/state.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/half.h"
#include "kernels/kv_rounding.h"
#include "kernels/reference/backend.h"
#include "kernels/state_bytes.h"

namespace polysketch::reference {
namespace {

void Resize(const AttentionSpec& spec, int64_t tokens, HeadState* head) {
  head->near_keys.resize(tokens * spec.near_dim());
  if (spec.keeps_far_keys()) head->far_keys.resize(tokens * spec.far_dim());
  head->values.resize(tokens * spec.head_dim);
  if (spec.decay_gate) head->decay_sums.resize(tokens);
}

}  // namespace

int64_t FeatureCount(const AttentionSpec& spec) {
  if (spec.kv_cache()) return spec.far_part() ? FeatureCount(spec.FarPart()) : 0;
  return spec.sketched() ? int64_t{spec.sketch_size} * spec.sketch_size : spec.num_features;
}

std::vector<double> FarFeatures(const AttentionSpec& spec, const float* x) {
  if (spec.far_part()) return FarFeatures(spec.FarPart(), x);
  if (!spec.sketched()) return std::vector<double>(x, x + spec.num_features);
  const int size = spec.sketch_size;
  std::vector<double> features;
  features.reserve(FeatureCount(spec));
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
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

ReferenceLayer::ReferenceLayer(const AttentionSpec& spec, bool float64)
    : HostLayer(spec),
      float64_(float64),
      sums_spec_(spec.far_part() ? spec.FarPart() : spec),
      heads_(static_cast<size_t>(spec.key_heads())) {
  PS_CHECK(spec.block > 0);
  Reset();
}

void ReferenceLayer::Reset() {
  for (HeadState& state : heads_) {
    state.value_sum.assign(FeatureCount(spec_) * spec_.head_dim, 0.0);
    state.weight_sum.assign(FeatureCount(spec_), 0.0);
    if (sums_spec_.byte_copy()) state.copy.assign(state.value_sum.size(), 0.0f);
    state.stale_copy = false;
    Resize(spec_, spec_.kv_cache() ? 0 : spec_.block, &state);
  }
  buffered_ = dropped_ = folded_ = 0;
}

size_t ReferenceLayer::bytes() const {
  size_t total = 0;
  for (const HeadState& head : heads_) {
    total += (head.value_sum.size() + head.weight_sum.size()) * sizeof(double);
    total += (head.near_keys.size() + head.far_keys.size() + head.values.size() +
              head.decay_sums.size() + head.copy.size()) *
             sizeof(float);
  }
  return total;
}

void ReferenceLayer::CopyFrom(const HostLayer& other, int64_t /*position*/) {
  const auto& from = static_cast<const ReferenceLayer&>(other);
  heads_ = from.heads_;
  buffered_ = from.buffered_;
  dropped_ = from.dropped_;
  folded_ = from.folded_;
}

void ReferenceLayer::SetBuffered(int64_t position) {
  buffered_ = spec_.BufferedTokens(position);
  dropped_ = spec_.DroppedTokens(position);
  folded_ = spec_.far_part() && position > 0 ? spec_.FirstVisible(position - 1) : 0;
  if (!spec_.kv_cache()) return;
  for (HeadState& head : heads_) Resize(spec_, spec_.CacheBlocks(position) * spec_.block, &head);
}

int64_t ReferenceLayer::Append() {
  const int64_t index = buffered_++;
  if (spec_.kv_cache() && index % spec_.block == 0) {
    for (HeadState& head : heads_) Resize(spec_, index + spec_.block, &head);
  }
  return index;
}

void ReferenceLayer::Drop(int64_t position) {
  const int64_t tokens = spec_.DroppedTokens(position) - dropped_, first = spec_.SinkTokens();
  const auto drop = [&](int width, std::vector<float>* rows) {
    const auto begin = rows->begin() + first * width;
    rows->erase(begin, begin + tokens * width);
  };
  for (HeadState& head : heads_) {
    drop(spec_.near_dim(), &head.near_keys);
    if (spec_.keeps_far_keys()) drop(spec_.far_dim(), &head.far_keys);
    drop(spec_.head_dim, &head.values);
    if (spec_.decay_gate) drop(1, &head.decay_sums);
  }
  buffered_ -= tokens;
  dropped_ += tokens;
}

void ReferenceLayer::Fold() {
  PS_CHECK(!spec_.kv_cache() && buffered_ == spec_.block);
  FoldTokens(0, 0);
  buffered_ = 0;
}

void ReferenceLayer::FoldBefore(int64_t t) {
  for (const int64_t end = spec_.FirstVisible(t); folded_ < end; folded_ += spec_.block) {
    FoldTokens(folded_ < spec_.SinkTokens() ? folded_ : folded_ - dropped_,
               std::clamp<int64_t>(spec_.sinks - folded_, 0, spec_.block));
  }
}

void ReferenceLayer::FoldTokens(int64_t first, int64_t skipped) {
  const int d = spec_.head_dim;
  const auto store = [this](double sum) { return float64_ ? sum : static_cast<float>(sum); };
  for (HeadState& state : heads_) {
    const std::vector<float>& keys = spec_.keeps_far_keys() ? state.far_keys : state.near_keys;
    // The sum of the block from zero, in token order: sum_s phi(k_s) [v_s, 1]^T.
    std::vector<double> block_values(state.value_sum.size());
    std::vector<double> block_weights(state.weight_sum.size());
    const float last = spec_.decay_gate ? state.decay_sums[first + spec_.block - 1] : 0;
    for (int64_t s = first + skipped; s < first + spec_.block; ++s) {
      std::vector<double> features = FarFeatures(spec_, &keys[s * spec_.far_dim()]);
      if (spec_.decay_gate) Scale(DecayFactor(last, state.decay_sums[s]), &features);
      std::vector<float> value(&state.values[s * d], &state.values[s * d] + d);
      // Those of a recurrent kind are rounded when they are appended.
      for (float& v : value) v = sums_spec_.narrow_block() ? Bf16ToFloat(FloatToBf16(v)) : v;
      if (sums_spec_.byte_copy()) value = ByteVector(value.data(), d);
      for (size_t f = 0; f < features.size(); ++f) {
        block_weights[f] += features[f];
        for (int i = 0; i < d; ++i) block_values[f * d + i] += features[f] * value[i];
      }
    }
    // Each sum is added to the state once.
    const double kept = DecayFactor(last, 0);
    for (size_t i = 0; i < block_values.size(); ++i) {
      state.value_sum[i] = store(kept * state.value_sum[i] + block_values[i]);
    }
    for (size_t f = 0; f < block_weights.size(); ++f) {
      state.weight_sum[f] = store(kept * state.weight_sum[f] + block_weights[f]);
    }
    MakeCopy(&state);
  }
}

void ReferenceLayer::MakeCopy(HeadState* head) const {
  if (!sums_spec_.byte_copy()) return;
  const std::vector<float> sums(head->value_sum.begin(), head->value_sum.end());
  head->copy = ByteCopy(sums, FeatureCount(spec_), spec_.head_dim);
  head->stale_copy = false;
}

void ReferenceLayer::Prepare(int64_t position) {
  Reset();
  SetBuffered(position);
  for (HeadState& head : heads_) head.stale_copy = sums_spec_.byte_copy();
}

void ReferenceLayer::Walk(int64_t position, SavedValues* values) {
  PS_CHECK(!float64_) << "a float64 state cannot be saved";
  const int64_t n = spec_.BufferedTokens(position);
  for (HeadState& state : heads_) {
    if (spec_.HasFarState(position)) {
      values->Doubles(state.value_sum.data(), std::ssize(state.value_sum));
      values->Doubles(state.weight_sum.data(), std::ssize(state.weight_sum));
    }
    values->Floats(state.near_keys.data(), n * spec_.near_dim());
    if (spec_.keeps_far_keys()) values->Floats(state.far_keys.data(), n * spec_.far_dim());
    values->Floats(state.values.data(), n * spec_.head_dim);
    if (spec_.decay_gate) values->Floats(state.decay_sums.data(), n);
    for (int64_t t = 0; t < n && spec_.kv_cache() && !values->saves(); ++t) {
      RoundForCache(spec_, &state.near_keys[t * spec_.near_dim()], spec_.near_dim());
      RoundForCache(spec_, &state.values[t * spec_.head_dim], spec_.head_dim);
    }
  }
}

ReferenceState::ReferenceState(std::span<const AttentionSpec> layers, bool float64)
    : HostState(layers), float64_(float64) {
  for (const AttentionSpec& spec : layers) {
    layers_.push_back(std::make_unique<ReferenceLayer>(spec, float64));
  }
}

std::unique_ptr<SequenceState> ReferenceState::Clone() const {
  auto copy = std::make_unique<ReferenceState>(specs_, float64_);
  copy->CopyFrom(*this);
  return copy;
}

std::unique_ptr<SequenceState> ReferenceBackend::NewState(std::span<const AttentionSpec> layers) {
  return std::make_unique<ReferenceState>(layers, float64_state_);
}

size_t ReferenceBackend::StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) const {
  int64_t bytes = 0;
  for (const AttentionSpec& spec : layers) {
    const int64_t blocks = spec.kv_cache() ? spec.CacheBlocks(tokens) : 1;
    const bool bytes_read = spec.byte_copy() || (spec.far_part() && spec.FarPart().byte_copy());
    const int64_t copy = bytes_read ? FeatureCount(spec) * spec.head_dim * sizeof(float) : 0;
    bytes += spec.key_heads() * (FeatureCount(spec) * (spec.head_dim + 1) * sizeof(double) + copy +
                                 blocks * spec.block * spec.TokenFloats() * sizeof(float));
  }
  return static_cast<size_t>(bytes);
}

}  // namespace polysketch::reference
