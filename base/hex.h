// Bytes as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace polysketch {

// Two lower-case hexadecimal digits for each byte.
inline std::string HexDigits(std::span<const uint8_t> bytes) {
  std::string digits;
  for (const uint8_t byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

}  // namespace polysketch
