#include "server/openai/json_slice.h"

#include <algorithm>

#include "base/bounded_json.h"

namespace polysketch {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// The place after the string whose quote is at `begin`.
size_t AfterString(std::string_view text, size_t begin) {
  size_t at = begin + 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

size_t AfterSpace(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

// The place after the value that begins at `begin`, which no white space precedes.
size_t AfterValue(std::string_view text, size_t begin) {
  int depth = 0;
  for (size_t at = begin; at < text.size();) {
    const char c = text[at];
    if (depth == 0 && at > begin &&
        (c == ',' || c == '}' || c == ']' || kSpace.find(c) != std::string_view::npos))
      return at;
    if (c == '"') {
      at = AfterString(text, at);
    } else {
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      ++at;
    }
    const bool closed =
        depth == 0 && (text[at - 1] == '"' || text[at - 1] == '}' || text[at - 1] == ']');
    if (closed) return at;
  }
  return text.size();
}

// A name in quotes, which may have escapes.
bool IsName(std::string_view quoted, const std::string& name) {
  if (quoted.find('\\') == std::string_view::npos)
    return quoted.substr(1, quoted.size() - 2) == name;
  const auto decoded = ParseJson(quoted);
  return decoded.ok() && *decoded == name;
}

// The last member `name` of the object that begins at text[0].
std::optional<std::string_view> Member(std::string_view text, const std::string& name) {
  std::optional<std::string_view> found;
  if (!text.starts_with('{')) return found;
  size_t at = AfterSpace(text, 1);
  while (at < text.size() && text[at] == '"') {
    const size_t end = AfterString(text, at);
    const bool same = IsName(text.substr(at, end - at), name);
    const size_t value = AfterSpace(text, AfterSpace(text, end) + 1);
    const size_t after = AfterValue(text, value);
    if (same) found = text.substr(value, after - value);
    at = AfterSpace(text, after);
    if (at < text.size() && text[at] == ',') at = AfterSpace(text, at + 1);
  }
  return found;
}

}  // namespace

std::optional<std::string> JsonSlice(std::string_view text, const std::vector<std::string>& path) {
  std::string_view value = text.substr(std::min(text.find('{'), text.size()));
  for (const std::string& name : path) {
    const auto member = Member(value, name);
    if (!member) return std::nullopt;
    value = *member;
  }
  std::string slice;
  slice.reserve(value.size());
  for (size_t at = 0; at < value.size();) {
    const size_t next = value[at] == '"' ? AfterString(value, at) : at + 1;
    if (kSpace.find(value[at]) == std::string_view::npos) slice += value.substr(at, next - at);
    at = next;
  }
  return slice;
}

}  // namespace polysketch
