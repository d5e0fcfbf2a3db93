#include "kernels/saved_state.h"

#include <algorithm>
#include <limits>

namespace polysketch {

size_t SavedStateBytes(const AttentionSpec& spec, int64_t features, int64_t position) {
  const int64_t far = spec.HasFarState(position) ? features * (int64_t{spec.head_dim} + 1) : 0;
  const int64_t head = far + spec.BufferedTokens(position) * spec.TokenFloats();
  return static_cast<size_t>(int64_t{spec.layers} * spec.key_heads() * head) * sizeof(float);
}

Status CheckSavedSize(const AttentionSpec& spec, int64_t features, int64_t position, size_t size) {
  // The bound keeps SavedStateBytes from overflowing: a token of a KV cache takes 8 bytes or more.
  const auto max_position = spec.kv_cache() ? static_cast<int64_t>(size / (2 * sizeof(float)))
                                            : std::numeric_limits<int64_t>::max() / 2;
  if (position < 0 || position > max_position) {
    return InvalidArgument("position: expected one that the state's ", size,
                           " bytes can hold, found ", position);
  }
  const size_t expected = SavedStateBytes(spec, features, position);
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

namespace {

// The bytes of a layer: all layers have the same number.
template <typename Byte>
std::span<Byte> OfLayer(std::span<Byte> bytes, int layer, int layers) {
  const size_t size = bytes.size() / static_cast<size_t>(layers);
  return bytes.subspan(static_cast<size_t>(layer) * size, size);
}

}  // namespace

void HostState::SavePart(int layer, std::span<uint8_t> out) const {
  SavedValues values = SavedValues::Writer(OfLayer(out, layer, spec_.layers));
  const_cast<HostState*>(this)->Walk(layer, position(), &values);  // a writer only reads
}

Status HostState::CheckSavedSize(int64_t position, size_t size) const {
  return polysketch::CheckSavedSize(spec_, features_, position, size);
}

Status HostState::LoadPart(int layer, int64_t position, std::span<const uint8_t> bytes) {
  const std::span<const uint8_t> part = OfLayer(bytes, layer, spec_.layers);
  PS_RETURN_IF_ERROR(CheckFinite(part));
  Prepare(layer, position);
  SavedValues values = SavedValues::Reader(part);
  Walk(layer, position, &values);
  return Status();
}

}  // namespace polysketch
