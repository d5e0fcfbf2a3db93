#include "base/utf8.h"

#include "base/check.h"

namespace polysketch {

Utf8Char DecodeUtf8(std::string_view text) {
  PS_CHECK(!text.empty());
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  using Kind = Utf8Char::Kind;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::kValid, 1, lead};

  // Table 3-7 of the Unicode standard: the lead byte determines the length and the bounds of the
  // second byte; further bytes are 80..BF.
  int length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 1, 0};
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {Kind::kIncomplete, i, 0};
    const unsigned char next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return {Kind::kInvalid, i, 0};
    low = 0x80;
    high = 0xBF;
    code_point = (code_point << 6) | (next & 0x3F);
  }
  return {Kind::kValid, length, code_point};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Char c = DecodeUtf8(text.substr(i));
    if (c.kind != Utf8Char::Kind::kValid) break;
    i += static_cast<size_t>(c.length);
  }
  return i;
}

std::string WholeCharacters(std::string_view text) {
  std::string whole;
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    whole += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    whole += kReplacementCharacter;
    text.remove_prefix(static_cast<size_t>(DecodeUtf8(text).length));
  }
  return whole;
}

bool IsUtf8Beginning(std::string_view tail) {
  if (tail.empty()) return true;
  const Utf8Char c = DecodeUtf8(tail);
  return c.kind == Utf8Char::Kind::kIncomplete && static_cast<size_t>(c.length) == tail.size();
}

}  // namespace polysketch
