#include "server/http/request_path.h"

#include <algorithm>

namespace polysketch {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// `space`: the character that is a space in the text too.
std::optional<std::string> Unescaped(std::string_view text, char space = ' ') {
  std::string value;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      value.push_back(text[i] == space ? ' ' : text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    value.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return value;
}

}  // namespace

std::optional<std::vector<std::pair<std::string, std::string>>> DecodedQuery(
    std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    std::optional<std::string> name = Unescaped(part.substr(0, equals), '+');
    std::optional<std::string> value =
        Unescaped(part.substr(std::min(equals + 1, part.size())), '+');
    if (!name.has_value() || !value.has_value()) return std::nullopt;
    parameters.emplace_back(*std::move(name), *std::move(value));
  }
  return parameters;
}

std::optional<std::string> DecodedPath(std::string_view target) {
  const auto text = Unescaped(target.substr(0, target.find_first_of("?#")));
  if (!text.has_value()) return std::nullopt;
  std::string path = "/";
  for (const char c : *text)
    if (c != '/' || path.back() != '/') path.push_back(c);
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace polysketch
