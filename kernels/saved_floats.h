// The float32 values of a saved state (SequenceState::Save), written and read in order.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/status.h"
#include "kernels/attention_spec.h"

namespace polysketch {

// What a backend's one walk over its state does with each run of values; SavedFloatReader is its
// mirror.
class SavedFloatWriter {
 public:
  explicit SavedFloatWriter(std::span<uint8_t> out) : rest_(out) {}
  ~SavedFloatWriter() { PS_CHECK(rest_.empty()) << rest_.size() << " bytes were not written"; }

  void Run(const float* values, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    PS_CHECK(bytes <= rest_.size());
    if (bytes == 0) return;  // the pointers may be null then
    std::memcpy(rest_.data(), values, bytes);
    rest_ = rest_.subspan(bytes);
  }

 private:
  std::span<uint8_t> rest_;
};

class SavedFloatReader {
 public:
  explicit SavedFloatReader(std::span<const uint8_t> bytes) : rest_(bytes) {}
  ~SavedFloatReader() { PS_CHECK(rest_.empty()) << rest_.size() << " bytes were not read"; }

  void Run(float* values, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    PS_CHECK(bytes <= rest_.size());
    if (bytes == 0) return;  // the pointers may be null then
    std::memcpy(values, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }

 private:
  std::span<const uint8_t> rest_;
};

// Whether bytes from outside can be a saved state of `position` tokens, which takes
// saved_floats(position) values: INVALID_ARGUMENT for a bad position, another size, or a value that
// is not finite.
Status CheckSavedState(const AttentionSpec& spec, int64_t position,
                       int64_t (*saved_floats)(const AttentionSpec&, int64_t),
                       std::span<const uint8_t> bytes);

}  // namespace polysketch
