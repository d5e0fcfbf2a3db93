#include "kernels/saved_floats.h"

#include <algorithm>
#include <limits>

namespace polysketch {

Status CheckSavedState(const AttentionSpec& spec, int64_t position,
                       int64_t (*saved_floats)(const AttentionSpec&, int64_t),
                       std::span<const uint8_t> bytes) {
  // Bounded, so that saved_floats cannot overflow: a token of a KV cache takes at least 8 bytes.
  const auto most = spec.kv_cache() ? static_cast<int64_t>(bytes.size() / (2 * sizeof(float)))
                                    : std::numeric_limits<int64_t>::max() / 2;
  if (position < 0 || position > most) {
    return InvalidArgument("position: expected one that the state's ", bytes.size(),
                           " bytes can hold, found ", position);
  }
  const auto expected = static_cast<size_t>(saved_floats(spec, position)) * sizeof(float);
  if (bytes.size() != expected) {
    return InvalidArgument("state: expected ", expected, " bytes at position ", position,
                           ", found ", bytes.size());
  }
  // The largest magnitude as an integer: Inf and NaN lie above every finite number. One
  // branch-free loop.
  uint32_t largest = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof(bits));
    largest = std::max(largest, bits & 0x7FFFFFFF);
  }
  if (largest >= 0x7F800000) return InvalidArgument("state: expected finite values, found others");
  return Status();
}

}  // namespace polysketch
