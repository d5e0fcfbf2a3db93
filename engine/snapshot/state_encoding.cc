#include "engine/snapshot/state_encoding.h"

#include <zstd.h>

#include <cstring>

#include "base/check.h"

namespace polysketch {
namespace {

constexpr std::string_view kNames[] = {"f32", "bf16", "f32-zstd", "bf16-zstd"};

// Higher levels compress states by less than a percent more, at a third of the speed.
constexpr int kZstdLevel = 1;

size_t ValueBytes(StateEncoding encoding) {
  return encoding == StateEncoding::kBf16 || encoding == StateEncoding::kBf16Zstd ? 2 : 4;
}
bool IsCompressed(StateEncoding encoding) {
  return encoding == StateEncoding::kF32Zstd || encoding == StateEncoding::kBf16Zstd;
}

// Rounds to nearest even. Finite values above the largest bf16 become the largest bf16, not
// infinity.
uint16_t RoundToBf16(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (rounded > 0x7F7F ? 0x7F7F : rounded));
}

std::string ToBf16(std::span<const uint8_t> values) {
  std::string out(values.size() / 2, '\0');
  for (size_t i = 0; i < values.size() / 4; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, values.data() + i * 4, 4);
    const uint16_t half = RoundToBf16(bits);
    std::memcpy(out.data() + i * 2, &half, 2);
  }
  return out;
}

ByteBuffer FromBf16(std::string_view halves) {
  ByteBuffer out(halves.size() * 2, uint8_t{0});
  for (size_t i = 0; i < halves.size() / 2; ++i) {
    std::memcpy(out.data() + i * 4 + 2, halves.data() + i * 2, 2);
  }
  return out;
}

// bytes [rows, cols] -> [cols, rows]. Values become byte planes: exponents repeat, mantissas do
// not.
std::string Transpose(std::string_view bytes, size_t rows, size_t cols) {
  std::string out(bytes.size(), '\0');
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < cols; ++col) out[col * rows + row] = bytes[row * cols + col];
  }
  return out;
}

std::string Compress(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), kZstdLevel);
  PS_CHECK(ZSTD_isError(size) == 0) << ZSTD_getErrorName(size);
  out.resize(size);
  return out;
}

Result<std::string> Decompress(std::string_view bytes, size_t size) {
  std::string out(size, '\0');
  const size_t found = ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(found) != 0 || found != size) {
    return DataLoss("snapshot: state: expected ", size, " compressed bytes");
  }
  return out;
}

}  // namespace

std::string_view StateEncodingName(StateEncoding encoding) {
  return kNames[static_cast<size_t>(encoding)];
}

std::string EncodeState(std::span<const uint8_t> state, StateEncoding encoding) {
  PS_CHECK(state.size() % sizeof(float) == 0);
  const size_t width = ValueBytes(encoding);
  std::string bytes = width == 2
                          ? ToBf16(state)
                          : std::string(reinterpret_cast<const char*>(state.data()), state.size());
  if (!IsCompressed(encoding)) return bytes;
  return Compress(Transpose(bytes, bytes.size() / width, width));
}

Result<ByteBuffer> DecodeState(std::string_view bytes, uint32_t encoding, uint64_t size) {
  if (encoding >= std::size(kNames) || size % sizeof(float) != 0) {
    return DataLoss("snapshot: state: unknown encoding ", encoding, " of ", size, " bytes");
  }
  const auto form = static_cast<StateEncoding>(encoding);
  const size_t values = size / sizeof(float), width = ValueBytes(form);
  std::string plain;
  if (IsCompressed(form)) {
    PS_ASSIGN_OR_RETURN(plain, Decompress(bytes, values * width));
    plain = Transpose(plain, width, values);
    bytes = plain;
  }
  if (bytes.size() != values * width) {
    return DataLoss("snapshot: state: expected ", values * width, " bytes, found ", bytes.size());
  }
  if (width == 2) return FromBf16(bytes);
  return CopyOf(bytes);
}

}  // namespace polysketch
