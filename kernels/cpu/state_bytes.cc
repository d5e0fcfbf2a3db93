// States as bytes: state.h draws the layout. Save and Load are the same walk in two directions.
#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/state.h"
#include "kernels/saved_floats.h"

namespace polysketch::cpu {
namespace {

// A matrix [rows][cols] whose rows lie `stride` floats apart.
template <typename Io>
void Rows(Io* io, float* values, int64_t rows, int64_t cols, int64_t stride) {
  if (cols == stride) return io->Run(values, rows * cols);
  for (int64_t i = 0; i < rows; ++i) io->Run(values + i * stride, cols);
}

// The same of bf16 values, as float32 values.
void NarrowRow(SavedFloatWriter* io, uint16_t* values, std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) row[i] = Bf16ToFloat(values[i]);
  io->Run(row.data(), std::ssize(row));
}

void NarrowRow(SavedFloatReader* io, uint16_t* values, std::span<float> row) {
  io->Run(row.data(), std::ssize(row));
  for (size_t i = 0; i < row.size(); ++i) values[i] = FloatToBf16(row[i]);
}

template <typename Io>
void BlockRows(Io* io, bool narrow, float* values, int64_t rows, int64_t cols, int64_t stride) {
  if (!narrow) return Rows(io, values, rows, cols, stride);
  auto* bits = reinterpret_cast<uint16_t*>(values);
  float row[kKeyPanel];
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t first = 0; first < cols; first += kKeyPanel) {
      const int64_t n = std::min(kKeyPanel, cols - first);
      NarrowRow(io, bits + i * stride + first, {row, static_cast<size_t>(n)});
    }
  }
}

// Transposed keys [dim][tokens] out of their panels.
template <typename Io>
void KeyRows(Io* io, bool narrow, float* keys, int64_t dim, int64_t tokens) {
  for (int64_t row = 0; row < dim; ++row) {
    for (int64_t t = 0; t < tokens; t += kKeyPanel) {
      const int64_t at = KeyIndex(dim, row, t), n = std::min(kKeyPanel, tokens - t);
      float* part =
          narrow ? reinterpret_cast<float*>(reinterpret_cast<uint16_t*>(keys) + at) : keys + at;
      BlockRows(io, narrow, part, 1, n, n);
    }
  }
}

// S of StateFormat::kBf16: planes <-> values, row by row.
struct Planes {
  uint16_t* upper;
  uint16_t* lower;

  Planes(float* s, int64_t size) : upper(reinterpret_cast<uint16_t*>(s)), lower(upper + size) {}
  void Join(int64_t first, int64_t count, float* values) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t low = lower[first + i];
      values[i] = std::bit_cast<float>(((upper[first + i] - (low >> 15)) << 16) | low);
    }
  }
  void Split(int64_t first, int64_t count, const float* values) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
      upper[first + i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
      lower[first + i] = static_cast<uint16_t>(bits);
    }
  }
};

void PlaneRow(SavedFloatWriter* io, const Planes& planes, int64_t first, std::span<float> row) {
  planes.Join(first, std::ssize(row), row.data());
  io->Run(row.data(), std::ssize(row));
}

void PlaneRow(SavedFloatReader* io, const Planes& planes, int64_t first, std::span<float> row) {
  io->Run(row.data(), std::ssize(row));
  planes.Split(first, std::ssize(row), row.data());
}

template <typename Io>
void FarSums(const AttentionSpec& spec, const HeadLayout& layout, float* s, Io* io) {
  const int64_t dp = layout.padded_dim;
  if (spec.state_format == StateFormat::kF32) {
    return Rows(io, s, spec.features(), spec.head_dim, dp);
  }
  const Planes planes(s, spec.features() * dp);
  std::vector<float> row(static_cast<size_t>(spec.head_dim));
  for (int64_t f = 0; f < spec.features(); ++f) PlaneRow(io, planes, f * dp, row);
}

template <typename Io>
void Walk(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& head,
          int64_t position, Io* io) {
  const int64_t n = spec.BufferedTokens(position);
  if (spec.HasFarState(position)) {
    FarSums(spec, layout, head.s, io);
    io->Run(head.z, spec.features());
  }
  KeyRows(io, false, head.far_keys, spec.far_dim(), n);
  const bool narrow = spec.narrow_block();
  if (spec.mixed()) {
    KeyRows(io, narrow, head.near_keys, spec.near_dim(), n);
  }
  BlockRows(io, narrow, head.values, n, spec.head_dim, layout.padded_dim);
}

int64_t SavedFloats(const AttentionSpec& spec, int64_t position) {
  const int64_t far =
      spec.HasFarState(position) ? int64_t{spec.features()} * (spec.head_dim + 1) : 0;
  const int64_t token =
      spec.far_dim() + (spec.mixed() || spec.kv_cache() ? spec.near_dim() : 0) + spec.head_dim;
  return int64_t{spec.layers} * spec.heads * (far + spec.BufferedTokens(position) * token);
}

// One of `parts` equal ones.
std::span<uint8_t> PartOf(std::span<uint8_t> out, int part, int parts) {
  const size_t size = out.size() / static_cast<size_t>(parts);
  return out.subspan(static_cast<size_t>(part) * size, size);
}

}  // namespace

size_t RecurrentState::SavedBytes() const {
  return static_cast<size_t>(SavedFloats(spec_, position())) * sizeof(float);
}

void RecurrentState::SavePart(int layer, std::span<uint8_t> out) const {
  SavedFloatWriter writer(PartOf(out, layer, spec_.layers));
  auto* self = const_cast<RecurrentState*>(this);  // the writer only reads
  for (int head = 0; head < spec_.heads; ++head) {
    Walk(spec_, layout_, self->Head(layer, head), position(), &writer);
  }
}

Status RecurrentState::Load(int64_t position, std::span<const uint8_t> bytes) {
  PS_RETURN_IF_ERROR(CheckSavedState(spec_, position, SavedFloats, bytes));
  if (!spec_.HasFarState(position)) Reset();
  SavedFloatReader reader(bytes);
  for (int layer = 0; layer < spec_.layers; ++layer) {
    for (int head = 0; head < spec_.heads; ++head) {
      Walk(spec_, layout_, Head(layer, head), position, &reader);
    }
  }
  set_position(position);
  return Status();
}

template <typename Io>
void KvState::Transfer(int layer, int64_t position, Io* io) {
  for (int64_t first = 0; first < position; first += spec_.block) {
    const int64_t n = std::min<int64_t>(spec_.block, position - first);
    for (int head = 0; head < spec_.heads; ++head) {
      KeyRows(io, false, Keys(layer, first / spec_.block, head), spec_.head_dim, n);
      Rows(io, Values(layer, first / spec_.block, head), n, spec_.head_dim, layout_.padded_dim);
    }
  }
}

size_t KvState::SavedBytes() const {
  return static_cast<size_t>(SavedFloats(spec_, position())) * sizeof(float);
}

void KvState::SavePart(int layer, std::span<uint8_t> out) const {
  SavedFloatWriter writer(PartOf(out, layer, spec_.layers));
  const_cast<KvState*>(this)->Transfer(layer, position(), &writer);  // the writer only reads
}

Status KvState::Load(int64_t position, std::span<const uint8_t> bytes) {
  PS_RETURN_IF_ERROR(CheckSavedState(spec_, position, SavedFloats, bytes));
  for (int layer = 0; layer < spec_.layers; ++layer) Resize(layer, position);
  SavedFloatReader reader(bytes);
  for (int layer = 0; layer < spec_.layers; ++layer) Transfer(layer, position, &reader);
  set_position(position);
  return Status();
}

}  // namespace polysketch::cpu
