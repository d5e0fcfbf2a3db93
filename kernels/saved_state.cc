#include "kernels/saved_state.h"

#include <algorithm>
#include <limits>

#include "base/byte_buffer.h"

namespace polysketch {

size_t SavedLayerBytes(const AttentionSpec& spec, int64_t features, int64_t position) {
  const int64_t far = spec.HasFarState(position) ? features * (int64_t{spec.head_dim} + 1) : 0;
  const int64_t head = far + spec.BufferedTokens(position) * spec.TokenFloats();
  return static_cast<size_t>(spec.key_heads() * head) * sizeof(float);
}

size_t SavedStateBytes(std::span<const AttentionSpec> layers, int64_t position) {
  size_t bytes = 0;
  for (const AttentionSpec& layer : layers) {
    bytes += SavedLayerBytes(layer, layer.features(), position);
  }
  return bytes;
}

Status CheckSavedSize(std::span<const AttentionSpec> layers,
                      const std::function<size_t(size_t layer, int64_t position)>& layer_bytes,
                      int64_t position, size_t size) {
  // The bound keeps the sizes of layers that grow from overflowing.
  int64_t max_position = std::numeric_limits<int64_t>::max() / 2;
  for (const AttentionSpec& layer : layers) {
    if (!layer.grows()) continue;
    const auto token_bytes =
        layer.key_heads() * layer.TokenFloats() * static_cast<int64_t>(sizeof(float));
    max_position = std::min(max_position, static_cast<int64_t>(size) / token_bytes);
  }
  if (position < 0 || position > max_position) {
    return InvalidArgument("position: expected one that the state's ", size,
                           " bytes can hold, found ", position);
  }
  size_t expected = 0;
  for (size_t i = 0; i < layers.size(); ++i) expected += layer_bytes(i, position);
  if (size != expected) {
    return InvalidArgument("state: expected ", expected, " bytes at position ", position,
                           ", found ", size);
  }
  return Status();
}

Status CheckFinite(std::span<const uint8_t> bytes) {
  // The largest magnitude as an integer: Inf and NaN are above all finite numbers. The loop has no
  // branch and is vectorised.
  uint32_t largest = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof(bits));
    largest = std::max(largest, bits & 0x7FFFFFFF);
  }
  if (largest >= 0x7F800000) return InvalidArgument("state: expected finite values, found others");
  return Status();
}

size_t HostState::bytes() const {
  size_t bytes = 0;
  for (const auto& layer : layers_) bytes += layer->bytes();
  return bytes;
}

StateMemory HostState::Memory() const {
  StateMemory memory;
  std::vector<std::pair<size_t, size_t>>
      firsts;  // the first layer of each spec, and its first block
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::vector<StateBlock> blocks = layers_[i]->Blocks();
    memory.own += layers_[i]->bytes();
    if (blocks.empty()) continue;
    for (const StateBlock& block : blocks) memory.own -= block.bytes;
    memory.own += blocks.size() * kBlockReferenceBytes;
    const auto first = std::ranges::find_if(
        firsts, [&](const auto& one) { return specs_[one.first] == specs_[i]; });
    if (first == firsts.end()) {
      firsts.emplace_back(i, memory.blocks.size());
      memory.blocks.insert(memory.blocks.end(), blocks.begin(), blocks.end());
      continue;
    }
    for (size_t b = 0; b < blocks.size(); ++b) {
      memory.blocks[first->second + b].bytes += blocks[b].bytes;
    }
  }
  return memory;
}

size_t HostState::BytesToCopy() const {
  size_t bytes = 0;
  for (const auto& layer : layers_) bytes += layer->BytesToCopy(position());
  return bytes;
}

void HostState::Reset() {
  for (const auto& layer : layers_) layer->Reset();
  set_position(0);
}

void HostState::Truncate(int64_t position) {
  PS_CHECK(position >= EarliestTruncation() && position <= this->position()) << position;
  for (const auto& layer : layers_) layer->Truncate(position);
  set_position(position);
}

size_t HostState::SavedBytes() const {
  size_t bytes = 0;
  for (const auto& layer : layers_) bytes += layer->SavedBytes(position());
  return bytes;
}

void HostState::SavePart(int layer, std::span<uint8_t> out) const {
  SavedValues values = SavedValues::Writer(PartOf(out, layer, position()));
  layers_[static_cast<size_t>(layer)]->Walk(position(), &values);  // a writer only reads
}

void HostState::SaveInPieces(const std::function<void(std::span<const uint8_t>)>& write) const {
  ByteBuffer piece;
  for (const auto& layer : layers_) {
    piece.resize(layer->SavedBytes(position()));
    {
      SavedValues values = SavedValues::Writer(piece);
      layer->Walk(position(), &values);
    }
    write(piece);
  }
}

Status HostState::CheckSavedSize(int64_t position, size_t size) const {
  return polysketch::CheckSavedSize(
      specs_, [this](size_t layer, int64_t at) { return layers_[layer]->SavedBytes(at); }, position,
      size);
}

Status HostState::LoadPart(int layer, int64_t position, std::span<const uint8_t> bytes) {
  const std::span<const uint8_t> part = PartOf(bytes, layer, position);
  PS_RETURN_IF_ERROR(CheckFinite(part));
  this->layer(layer).Prepare(position);
  SavedValues values = SavedValues::Reader(part);
  this->layer(layer).Walk(position, &values);
  return Status();
}

void HostState::CopyPart(int layer, const SequenceState& other) {
  const auto& from = static_cast<const HostState&>(other);
  PS_CHECK(from.specs_ == specs_) << "a state of another model";
  this->layer(layer).CopyFrom(from.layer(layer), from.position());
}

bool HostState::cleared() const {
  return std::ranges::all_of(layers_, [](const auto& layer) { return layer->cleared(); });
}

}  // namespace polysketch
