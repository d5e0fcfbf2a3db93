#include "clients/cpp/utf8.h"

#include <algorithm>
#include <cstdint>

namespace polysketch {
namespace {

// Bytes of a character by its first byte, and what the second byte may be; the others are 80..BF.
// Size 0: no character.
struct Lead {
  size_t size;
  uint8_t second_min;
  uint8_t second_max;
};

Lead LeadOf(uint8_t first) {
  if (first < 0x80) return {1, 0, 0};
  if (first < 0xC2) return {0, 0, 0};
  if (first < 0xE0) return {2, 0x80, 0xBF};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3, 0x80, 0xBF};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first < 0xF4) return {4, 0x80, 0xBF};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// How many of the bytes at the front of `text` fit one character.
size_t FittingBytes(std::string_view text, const Lead& lead) {
  if (text.empty() || lead.size == 0) return 0;
  const size_t most = std::min(lead.size, text.size());
  for (size_t i = 1; i < most; ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return i;
  }
  return most;
}

}  // namespace

size_t Utf8PrefixLength(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Lead lead = LeadOf(static_cast<uint8_t>(text[length]));
    if (lead.size == 0 || FittingBytes(text.substr(length), lead) < lead.size) break;
    length += lead.size;
  }
  return length;
}

bool IsUtf8Beginning(std::string_view tail) {
  if (tail.empty()) return true;
  const Lead lead = LeadOf(static_cast<uint8_t>(tail[0]));
  return tail.size() < lead.size && FittingBytes(tail, lead) == tail.size();
}

Status CheckUtf8(std::string_view what, std::string_view text) {
  const size_t whole = Utf8PrefixLength(text);
  if (whole == text.size()) return Status();
  return InvalidArgument(what, " is not UTF-8 at byte ", whole);
}

}  // namespace polysketch
