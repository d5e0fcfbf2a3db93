#include "kernels/cpu/state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace polysketch::cpu {
namespace {

int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace

HeadLayout::HeadLayout(const AttentionSpec& spec)
    : padded_dim(RoundUp16(spec.head_dim)),
      padded_block((spec.block + kKeyPanel - 1) / kKeyPanel * kKeyPanel) {
  const int64_t features = spec.features();
  z = features * padded_dim;
  far_keys = z + RoundUp16(features);
  near_keys = far_keys + (spec.mixed() ? spec.far_dim() * padded_block : 0);
  const int64_t key_floats = spec.near_dim() * padded_block;
  const int64_t value_floats = spec.block * padded_dim;
  values = near_keys + (spec.narrow_block() && spec.mixed() ? key_floats / 2 : key_floats);
  size = values + (spec.narrow_block() ? value_floats / 2 : value_floats);
}

RecurrentState::RecurrentState(const AttentionSpec& spec)
    : spec_(spec),
      layout_(spec),
      memory_(static_cast<size_t>(spec.layers) * spec.heads * layout_.size) {}

std::unique_ptr<SequenceState> RecurrentState::Clone() const {
  auto copy = std::make_unique<RecurrentState>(spec_);
  copy->CopyFrom(*this);
  return copy;
}

void RecurrentState::CopyFrom(const SequenceState& other) {
  const auto& from = static_cast<const RecurrentState&>(other);
  PS_CHECK(from.memory_.size() == memory_.size()) << "a state of another model";
  std::memcpy(memory_.data(), from.memory_.data(), bytes());
  set_position(from.position());
}

void RecurrentState::Truncate(int64_t position) {
  PS_CHECK(position >= EarliestTruncation() && position <= this->position()) << position;
  set_position(position);  // what lies behind it is never read
}

void RecurrentState::Reset() {
  // Block buffers need no clearing: what lies behind the position is never read.
  const int64_t heads = static_cast<int64_t>(spec_.layers) * spec_.heads;
  for (int64_t h = 0; h < heads; ++h) {
    std::memset(memory_.data() + h * layout_.size, 0, layout_.far_keys * sizeof(float));
  }
  set_position(0);
}

HeadState RecurrentState::Head(int layer, int head) {
  float* base = memory_.data() + (static_cast<int64_t>(layer) * spec_.heads + head) * layout_.size;
  return {base, base + layout_.z, base + layout_.far_keys, base + layout_.near_keys,
          base + layout_.values};
}

KvState::KvState(const AttentionSpec& spec) : spec_(spec), layout_(spec), layers_(spec.layers) {}

int64_t KvState::BlockFloats(const AttentionSpec& spec) {
  return spec.heads * HeadLayout(spec).size;
}

size_t KvState::bytes() const {
  size_t blocks = 0;
  for (const auto& layer : layers_) blocks += layer.size();
  return blocks * BlockFloats(spec_) * sizeof(float);
}

std::unique_ptr<SequenceState> KvState::Clone() const {
  auto copy = std::make_unique<KvState>(spec_);
  copy->CopyFrom(*this);
  return copy;
}

void KvState::CopyFrom(const SequenceState& other) {
  const auto& from = static_cast<const KvState&>(other);
  PS_CHECK(from.layers_.size() == layers_.size()) << "a state of another model";
  for (size_t l = 0; l < layers_.size(); ++l) {
    Resize(static_cast<int>(l), from.position());
    for (size_t b = 0; b < layers_[l].size(); ++b) {
      const AlignedBuffer<float>& block = from.layers_[l][b];
      std::memcpy(layers_[l][b].data(), block.data(), block.size() * sizeof(float));
    }
  }
  set_position(from.position());
}

void KvState::Truncate(int64_t position) {
  PS_CHECK(position >= 0 && position <= this->position()) << position;
  for (int l = 0; l < spec_.layers; ++l) Resize(l, position);
  set_position(position);
}

void KvState::Reset() {
  for (auto& layer : layers_) layer.clear();
  set_position(0);
}

void KvState::Reserve(int layer, int64_t tokens) {
  const size_t blocks = (tokens + spec_.block - 1) / spec_.block;
  while (layers_[layer].size() < blocks) layers_[layer].emplace_back(BlockFloats(spec_));
}

void KvState::Resize(int layer, int64_t tokens) {
  const size_t blocks = (tokens + spec_.block - 1) / spec_.block;
  if (layers_[layer].size() > blocks) layers_[layer].resize(blocks);
  Reserve(layer, tokens);
}

float* KvState::Keys(int layer, int64_t block, int head) {
  return layers_[layer][block].data() + head * layout_.size + layout_.near_keys;
}

float* KvState::Values(int layer, int64_t block, int head) {
  return layers_[layer][block].data() + head * layout_.size + layout_.values;
}

std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec) {
  if (spec.kv_cache()) return std::make_unique<KvState>(spec);
  return std::make_unique<RecurrentState>(spec);
}

size_t StateBytes(const AttentionSpec& spec, int64_t tokens) {
  if (spec.kv_cache()) {
    const int64_t blocks = (tokens + spec.block - 1) / spec.block;
    return static_cast<size_t>(blocks) * spec.layers * KvState::BlockFloats(spec) * sizeof(float);
  }
  return static_cast<size_t>(spec.layers) * spec.heads * HeadLayout(spec).size * sizeof(float);
}

}  // namespace polysketch::cpu
