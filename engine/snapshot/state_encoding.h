// The encodings of a state's float32 values in a snapshot.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/byte_buffer.h"
#include "base/status.h"

namespace polysketch {

enum class StateEncoding : uint32_t {
  kF32 = 0,       // exact
  kBf16 = 1,      // two bytes a value, rounded to nearest even: half the size
  kF32Zstd = 2,   // exact, byte planes compressed
  kBf16Zstd = 3,  // two bytes a value, compressed
};
// "f32", "bf16", "f32-zstd", "bf16-zstd".
std::string_view StateEncodingName(StateEncoding encoding);

// Both read and write by spans: beside their input and output they hold a few megabytes at most.

// Appends the state, `size` bytes of float32 values, to `out`. write_state(write) calls
// write(bytes) for these bytes in order, some at a time: whole values. It is called once for each
// byte plane.
using StateWriter = std::function<void(std::span<const uint8_t>)>;
void EncodeState(const std::function<void(const StateWriter& write)>& write_state, size_t size,
                 StateEncoding encoding, std::string* out);

// Calls write(bytes) for what the encoding keeps of float32 values, before compression. Of values
// that it decodes to, it keeps the same.
void KeptValues(std::span<const uint8_t> values, StateEncoding encoding,
                const std::function<void(std::string_view)>& write);

// Decodes `bytes` to float32 values. `size`: their size in bytes, which the caller has limited.
// DATA_LOSS for bytes that EncodeState does not make of a state of this size.
Result<ByteBuffer> DecodeState(std::string_view bytes, uint32_t encoding, uint64_t size);

}  // namespace polysketch
