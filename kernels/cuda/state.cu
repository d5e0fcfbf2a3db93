#include "kernels/cuda/state.h"

#include <algorithm>

#include "base/check.h"

namespace polysketch::cuda {
namespace {

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

HeadLayout::HeadLayout(const AttentionSpec& spec)
    : element(spec.state_format == StateFormat::kBf16 ? 2 : 4) {
  const int64_t features = spec.features();
  z = Align(features * spec.head_dim * 4);
  far_keys = z + Align(features * 4);
  near_keys = far_keys + (spec.mixed() ? Align(spec.block * element * spec.far_dim()) : 0);
  values = near_keys + Align(spec.block * element * spec.near_dim());
  decay_sums = values + Align(spec.block * element * spec.head_dim);
  size = decay_sums + (spec.decay_gate ? Align(int64_t{spec.block} * 4) : 0);
}

CudaState::CudaState(Device* device, std::span<const AttentionSpec> layers)
    : LayeredState(layers), device_(device), spec_(layers.front()), layout_(spec_) {
  PS_CHECK(spec_.key_heads() == spec_.heads) << "BackendFeature::kGroupedQueries";
  PS_CHECK(spec_.window == 0) << "BackendFeature::kWindows";
  PS_CHECK(std::ranges::count(layers, spec_) == std::ssize(layers))
      << "BackendFeature::kMixedLayers";
  if (spec_.kv_cache()) return;
  memory_ = DeviceArray<uint8_t>(device, AllHeads() * layout_.size);
  device_->Zero(memory_.data(), memory_.size());
}

CudaState::~CudaState() { KeepBlocks(0); }

void CudaState::KeepBlocks(size_t count) {
  while (blocks_.size() > count) {
    device_->ReturnBlock(blocks_.back(), block_bytes());
    blocks_.pop_back();
  }
}

size_t CudaState::bytes() const { return memory_.size() + blocks_.size() * block_bytes(); }

std::unique_ptr<SequenceState> CudaState::Clone() const {
  auto copy = std::make_unique<CudaState>(device_, specs_);
  copy->CopyFrom(*this);
  return copy;
}

void CudaState::CopyPart(int /*part*/, const SequenceState& other) {
  const auto& from = static_cast<const CudaState&>(other);
  PS_CHECK(from.memory_.size() == memory_.size()) << "a state of another model";
  device_->Copy(memory_.data(), from.memory_.data(), memory_.size());
  if (spec_.kv_cache()) {
    Truncate(std::min(position(), from.position()));
    Reserve(from.position());
  }
  for (size_t i = 0; i < blocks_.size() && i < from.blocks_.size(); ++i) {
    device_->Copy(blocks_[i], from.blocks_[i], block_bytes());
  }
}

void CudaState::Reset() {
  device_->Zero(memory_.data(), memory_.size());
  KeepBlocks(0);
  set_position(0);
}

void CudaState::Truncate(int64_t position) {
  PS_CHECK(position >= EarliestTruncation() && position <= this->position()) << position;
  // Recurrent kinds: tokens from the position on are never read.
  KeepBlocks((position + spec_.block - 1) / spec_.block);
  set_position(position);
}

void CudaState::Reserve(int64_t tokens) {
  PS_CHECK(spec_.kv_cache());
  const size_t blocks = (tokens + spec_.block - 1) / spec_.block;
  while (blocks_.size() < blocks) {
    blocks_.push_back(static_cast<uint8_t*>(device_->TakeBlock(block_bytes())));
    // Tokens from the position on are multiplied by weights of zero, so they must be finite.
    device_->Zero(blocks_.back(), block_bytes());
  }
}

std::vector<CudaState::Piece> CudaState::Pieces() const {
  if (!spec_.kv_cache()) return {{memory_.data(), memory_.size()}};
  std::vector<Piece> pieces;
  for (uint8_t* block : blocks_) pieces.push_back({block, block_bytes()});
  return pieces;
}

void CudaState::Walk(int64_t position, size_t index, uint8_t* heads, SavedValues* values) const {
  const bool half = layout_.element == 2;
  const auto walk = [&](uint8_t* array, int64_t count) {
    half ? values->Bf16(reinterpret_cast<uint16_t*>(array), count)
         : values->Floats(reinterpret_cast<float*>(array), count);
  };
  const int64_t sums = int64_t{spec_.features()} * spec_.head_dim;
  const int64_t before = static_cast<int64_t>(index) * spec_.block;
  const int64_t n = spec_.kv_cache() ? std::min<int64_t>(spec_.block, position - before)
                                     : spec_.BufferedTokens(position);
  uint8_t* head = heads;
  for (int64_t i = 0; i < AllHeads(); ++i, head += layout_.size) {
    if (spec_.HasFarState(position)) {
      auto* planes = reinterpret_cast<uint16_t*>(head);
      half ? values->Planes(planes, planes + sums, sums) : walk(head, sums);
      values->Floats(reinterpret_cast<float*>(head + layout_.z), spec_.features());
    }
    if (spec_.mixed()) walk(head + layout_.far_keys, n * spec_.far_dim());
    walk(head + layout_.near_keys, n * spec_.near_dim());
    walk(head + layout_.values, n * spec_.head_dim);
    if (spec_.decay_gate) values->Floats(reinterpret_cast<float*>(head + layout_.decay_sums), n);
  }
}

void CudaState::SavePart(int /*part*/, std::span<uint8_t> out) const {
  SavedValues values = SavedValues::Writer(out);
  const std::vector<Piece> pieces = Pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::vector<uint8_t> host(pieces[i].size);
    device_->CopyOut(host.data(), pieces[i].data, host.size());
    Walk(position(), i, host.data(), &values);
  }
}

Status CudaState::CheckSavedSize(int64_t position, size_t size) const {
  return polysketch::CheckSavedSize(
      specs_,
      [this](size_t /*layer*/, int64_t at) { return SavedLayerBytes(spec_, spec_.features(), at); },
      position, size);
}

Status CudaState::LoadPart(int /*part*/, int64_t position, std::span<const uint8_t> bytes) {
  PS_RETURN_IF_ERROR(CheckFinite(bytes));
  Reset();
  if (spec_.kv_cache()) Reserve(position);
  SavedValues values = SavedValues::Reader(bytes);
  const std::vector<Piece> pieces = Pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::vector<uint8_t> host(pieces[i].size);
    Walk(position, i, host.data(), &values);
    device_->CopyIn(pieces[i].data, host.data(), host.size());
  }
  return device_->status();
}

size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) {
  const AttentionSpec& spec = layers.front();
  const int64_t blocks = spec.kv_cache() ? (tokens + spec.block - 1) / spec.block : 1;
  return static_cast<size_t>(blocks * std::ssize(layers) * spec.heads * HeadLayout(spec).size);
}

}  // namespace polysketch::cuda
