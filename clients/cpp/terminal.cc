#include "clients/cpp/terminal.h"

#include <unistd.h>

#include <cstdio>

#include "base/utf8.h"

namespace polysketch {
namespace {

void AppendEscape(const char* format, unsigned value, std::string* text) {
  char escape[8];
  std::snprintf(escape, sizeof(escape), format, value);
  *text += escape;
}

bool IsControl(char32_t c) {
  if (c == '\n' || c == '\t') return false;
  return c < 0x20 || (c >= 0x7f && c < 0xa0);
}

// The property Bidi_Control of Unicode, and the ends of lines beside those of ASCII.
bool IsFormatting(char32_t c) {
  return c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string EscapeControls(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (c.kind != Utf8Char::Kind::kValid) {
      AppendEscape("\\x%02x", static_cast<unsigned char>(text[0]), &escaped);
      text.remove_prefix(1);
      continue;
    }
    if (IsControl(c.code_point) || IsFormatting(c.code_point)) {
      AppendEscape("\\u%04x", static_cast<unsigned>(c.code_point), &escaped);
    } else {
      escaped += text.substr(0, static_cast<size_t>(c.length));
    }
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  return escaped;
}

std::string TerminalText(int fd, std::string_view text) {
  return isatty(fd) == 1 ? EscapeControls(text) : std::string(text);
}

}  // namespace polysketch
