#include "engine/grammar_source/ebnf_check.h"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace polysketch {
namespace {

constexpr std::string_view kMacros[] = {"ExcludeToken", "Regex", "Substring",
                                        "TagDispatch",  "Token", "TokenTagDispatch"};
constexpr int64_t kMaxCount = 1'000'000;

bool IsInName(char c) {
  return c == '_' || c == '-' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

// The place after the string or class that begins at `begin` and ends with `end`.
size_t AfterQuoted(std::string_view text, size_t begin, char end) {
  size_t at = begin + 1;
  while (at < text.size() && text[at] != end && text[at] != '\n') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

// A string or class with escapes of a fixed length.
std::string WithFixedEscapes(std::string_view quoted) {
  const auto is_hex = [&](size_t at) {
    return at < quoted.size() && std::isxdigit(static_cast<unsigned char>(quoted[at])) != 0;
  };
  std::string text;
  for (size_t at = 0; at < quoted.size();) {
    if (quoted.substr(at).starts_with("\\x") && is_hex(at + 2) && is_hex(at + 3)) {
      text += "\\u00";
      at += 2;
      text += quoted.substr(at, 2);
      at += 2;
    } else {
      const size_t size = quoted[at] == '\\' ? 2 : 1;
      text += quoted.substr(at, size);
      at += size;
    }
  }
  return text;
}

bool DefinesRule(std::string_view text, size_t at) {
  at = std::min(text.find_first_not_of(" \t", at), text.size());
  return text.substr(at).starts_with("::=");
}

}  // namespace

Result<std::string> CheckedEbnf(std::string_view text) {
  if (text.find('\0') != std::string_view::npos)
    return InvalidArgument("expected EBNF, found a character U+0000");
  std::string checked;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t start = at;
    bool quoted = false;
    if (c == '#') {
      at = std::min(text.find_first_of("\r\n", at), text.size());
    } else if (c == '"' || c == '[') {
      at = AfterQuoted(text, at, c == '"' ? '"' : ']');
      quoted = true;
    } else if (c == '{') {
      for (++at; at < text.size() && text[at] != '}'; ++at) {
        int64_t count = 0;
        for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
          count = std::min<int64_t>(count * 10 + (text[at] - '0'), kMaxCount + 1);
        if (count > kMaxCount)
          return InvalidArgument("expected at most ", kMaxCount,
                                 " repetitions in EBNF, found more");
        if (at < text.size() && text[at] == '}') break;
      }
    } else if (IsInName(c)) {
      const size_t begin = at;
      while (at < text.size() && IsInName(text[at])) ++at;
      const std::string_view name = text.substr(begin, at - begin);
      if (std::find(std::begin(kMacros), std::end(kMacros), name) != std::end(kMacros))
        return InvalidArgument("expected rules of EBNF, found the macro ", name);
      const bool bracket = at < text.size() && text[at] == '[';
      if (bracket && DefinesRule(text, AfterQuoted(text, at, ']')))
        return InvalidArgument("expected ::= after the name ", name, ", found attributes");
    } else {
      ++at;
    }
    const std::string_view part = text.substr(start, at - start);
    checked += quoted ? WithFixedEscapes(part) : std::string(part);
  }
  return checked;
}

}  // namespace polysketch
