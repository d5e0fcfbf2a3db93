#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/state.h"

namespace polysketch::cuda {
namespace {

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t AllHeads(const AttentionSpec& spec) { return int64_t{spec.layers} * spec.heads; }

}  // namespace

HeadLayout::HeadLayout(const AttentionSpec& spec)
    : element(spec.state_format == StateFormat::kBf16 ? 2 : 4) {
  const int64_t features = spec.features();
  z = Align(features * spec.head_dim * 4);
  far_keys = z + Align(features * 4);
  near_keys = far_keys + (spec.mixed() ? Align(spec.block * element * spec.far_dim()) : 0);
  values = near_keys + Align(spec.block * element * spec.near_dim());
  size = values + Align(spec.block * element * spec.head_dim);
}

CudaState::CudaState(Device* device, const AttentionSpec& spec)
    : device_(device), spec_(spec), layout_(spec) {
  if (spec.kv_cache()) return;
  memory_ = DeviceArray<uint8_t>(device, AllHeads(spec) * layout_.size);
  device_->Zero(memory_.data(), memory_.size());
}

CudaState::~CudaState() { KeepBlocks(0); }

size_t CudaState::block_bytes() const { return AllHeads(spec_) * layout_.size; }

void CudaState::KeepBlocks(size_t count) {
  while (blocks_.size() > count) {
    device_->ReturnBlock(blocks_.back(), block_bytes());
    blocks_.pop_back();
  }
}

size_t CudaState::bytes() const { return memory_.size() + blocks_.size() * block_bytes(); }

std::unique_ptr<SequenceState> CudaState::Clone() const {
  auto copy = std::make_unique<CudaState>(device_, spec_);
  copy->CopyFrom(*this);
  return copy;
}

void CudaState::CopyFrom(const SequenceState& other) {
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
  set_position(from.position());
}

void CudaState::Reset() {
  device_->Zero(memory_.data(), memory_.size());
  KeepBlocks(0);
  set_position(0);
}

void CudaState::Truncate(int64_t position) {
  PS_CHECK(position >= EarliestTruncation() && position <= this->position()) << position;
  // Of a recurrent state what lies behind the position is never read.
  KeepBlocks((position + spec_.block - 1) / spec_.block);
  set_position(position);
}

void CudaState::Reserve(int64_t tokens) {
  PS_CHECK(spec_.kv_cache());
  const size_t blocks = (tokens + spec_.block - 1) / spec_.block;
  while (blocks_.size() < blocks) {
    blocks_.push_back(static_cast<uint8_t*>(device_->TakeBlock(block_bytes())));
    // What lies behind the position is multiplied by weights of zero: it must be finite.
    device_->Zero(blocks_.back(), block_bytes());
  }
}

size_t StateBytes(const AttentionSpec& spec, int64_t tokens) {
  const int64_t blocks = spec.kv_cache() ? (tokens + spec.block - 1) / spec.block : 1;
  return static_cast<size_t>(blocks) * AllHeads(spec) * HeadLayout(spec).size;
}

}  // namespace polysketch::cuda
