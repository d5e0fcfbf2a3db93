#include <algorithm>
#include <bit>

#include "base/half.h"
#include "kernels/cuda/state.h"
#include "kernels/saved_floats.h"

namespace polysketch::cuda {
namespace {

int64_t SavedFloats(const AttentionSpec& spec, int64_t position) {
  const int64_t far =
      spec.HasFarState(position) ? spec.features() * (int64_t{spec.head_dim} + 1) : 0;
  const int64_t token =
      spec.near_dim() + (spec.mixed() ? spec.far_dim() : 0) + int64_t{spec.head_dim};
  return int64_t{spec.layers} * spec.heads * (far + spec.BufferedTokens(position) * token);
}

// `count` elements of T (float32, or bf16 where `half`) as float32 values.
void Elements(SavedFloatWriter* io, uint8_t* from, bool half, int64_t count) {
  if (!half) {
    io->Run(reinterpret_cast<float*>(from), count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float value = Bf16ToFloat(reinterpret_cast<uint16_t*>(from)[i]);
    io->Run(&value, 1);
  }
}

void Elements(SavedFloatReader* io, uint8_t* to, bool half, int64_t count) {
  if (!half) {
    io->Run(reinterpret_cast<float*>(to), count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    io->Run(&value, 1);
    reinterpret_cast<uint16_t*>(to)[i] = FloatToBf16(value);
  }
}

// The two planes of S as float32 values (kernels/cpu/state.h).
void Planes(SavedFloatWriter* io, uint16_t* planes, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t upper = planes[i], lower = planes[size + i];
    const auto value = std::bit_cast<float>((upper - (lower >> 15)) << 16 | lower);
    io->Run(&value, 1);
  }
}

void Planes(SavedFloatReader* io, uint16_t* planes, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    float value = 0;
    io->Run(&value, 1);
    const auto bits = std::bit_cast<uint32_t>(value);
    planes[i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    planes[size + i] = static_cast<uint16_t>(bits);
  }
}

}  // namespace

template <typename Io>
void CudaState::Transfer(int64_t position, std::vector<std::vector<uint8_t>>* memory,
                         Io* io) const {
  const bool half = layout_.element == 2;
  const int64_t sums = int64_t{spec_.features()} * spec_.head_dim;
  const int64_t blocks =
      spec_.kv_cache() ? static_cast<int64_t>(memory->size()) : std::min<int64_t>(1, position);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t n = spec_.kv_cache()
                          ? std::min<int64_t>(spec_.block, position - block * spec_.block)
                          : spec_.BufferedTokens(position);
    uint8_t* head = (*memory)[block].data();
    for (int h = 0; h < spec_.layers * spec_.heads; ++h, head += layout_.size) {
      if (spec_.HasFarState(position)) {
        if (half) {
          Planes(io, reinterpret_cast<uint16_t*>(head), sums);
        } else {
          Elements(io, head, false, sums);
        }
        Elements(io, head + layout_.z, false, spec_.features());
      }
      if (spec_.mixed()) Elements(io, head + layout_.far_keys, half, n * spec_.far_dim());
      Elements(io, head + layout_.near_keys, half, n * spec_.near_dim());
      Elements(io, head + layout_.values, half, n * spec_.head_dim);
    }
  }
}

size_t CudaState::SavedBytes() const {
  return static_cast<size_t>(SavedFloats(spec_, position())) * sizeof(float);
}

void CudaState::SavePart(int /*part*/, std::span<uint8_t> out) const {
  std::vector<std::vector<uint8_t>> memory;
  const auto copy = [&](const uint8_t* from, size_t bytes) {
    memory.emplace_back(bytes);
    device_->CopyOut(memory.back().data(), from, bytes);
  };
  if (spec_.kv_cache()) {
    for (const uint8_t* block : blocks_) copy(block, block_bytes());
  } else {
    copy(memory_.data(), memory_.size());
  }
  SavedFloatWriter writer(out);
  Transfer(position(), &memory, &writer);
}

Status CudaState::Load(int64_t position, std::span<const uint8_t> bytes) {
  PS_RETURN_IF_ERROR(CheckSavedState(spec_, position, SavedFloats, bytes));
  Reset();
  if (spec_.kv_cache()) Reserve(position);
  std::vector<std::vector<uint8_t>> memory;
  if (spec_.kv_cache()) {
    memory.assign(blocks_.size(), std::vector<uint8_t>(block_bytes()));
  } else {
    memory.emplace_back(memory_.size());
  }
  SavedFloatReader reader(bytes);
  Transfer(position, &memory, &reader);
  for (size_t i = 0; i < memory.size(); ++i) {
    uint8_t* to = spec_.kv_cache() ? blocks_[i] : memory_.data();
    device_->CopyIn(to, memory[i].data(), memory[i].size());
  }
  device_->Synchronize();  // `memory` goes away
  set_position(position);
  return device_->status();
}

}  // namespace polysketch::cuda
