#include "kernels/saved_state.h"

#include <algorithm>
#include <limits>

namespace polysketch {

size_t SavedStateBytes(const AttentionSpec& spec, int64_t features, int64_t position) {
  const int64_t far = spec.HasFarState(position) ? features * (int64_t{spec.head_dim} + 1) : 0;
  const int64_t head = far + spec.BufferedTokens(position) * spec.TokenFloats();
  return static_cast<size_t>(int64_t{spec.layers} * spec.heads * head) * sizeof(float);
}

Status CheckSavedState(const AttentionSpec& spec, int64_t features, int64_t position,
                       std::span<const uint8_t> bytes) {
  // The bound keeps SavedStateBytes from overflowing: a token of a KV cache takes 8 bytes or more.
  const auto max_position = spec.kv_cache()
                                ? static_cast<int64_t>(bytes.size() / (2 * sizeof(float)))
                                : std::numeric_limits<int64_t>::max() / 2;
  if (position < 0 || position > max_position) {
    return InvalidArgument("position: expected one that the state's ", bytes.size(),
                           " bytes can hold, found ", position);
  }
  const size_t expected = SavedStateBytes(spec, features, position);
  if (bytes.size() != expected) {
    return InvalidArgument("state: expected ", expected, " bytes at position ", position,
                           ", found ", bytes.size());
  }
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

void HostState::SavePart(int layer, std::span<uint8_t> out) const {
  const size_t size = out.size() / static_cast<size_t>(spec_.layers);
  SavedValues values = SavedValues::Writer(out.subspan(static_cast<size_t>(layer) * size, size));
  const_cast<HostState*>(this)->Walk(layer, position(), &values);  // a writer only reads
}

Status HostState::Load(int64_t position, std::span<const uint8_t> bytes) {
  PS_RETURN_IF_ERROR(CheckSavedState(spec_, features_, position, bytes));
  Prepare(position);
  SavedValues values = SavedValues::Reader(bytes);
  for (int layer = 0; layer < spec_.layers; ++layer) Walk(layer, position, &values);
  set_position(position);
  return Status();
}

}  // namespace polysketch
