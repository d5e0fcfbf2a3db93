#include "server/http/request_path.h"

namespace polysketch {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::optional<std::string> DecodedPath(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  std::string path = "/";
  const auto add = [&path](char c) {
    if (c != '/' || path.back() != '/') path.push_back(c);
  };
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      add(target[i]);
      continue;
    }
    if (i + 2 >= target.size()) return std::nullopt;
    const int high = HexDigit(target[i + 1]), low = HexDigit(target[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    add(static_cast<char>(high * 16 + low));
    i += 2;
  }
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace polysketch
