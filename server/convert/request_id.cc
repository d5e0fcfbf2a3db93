#include "server/convert/request_id.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <random>

namespace polysketch {
namespace {

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

bool IsRequestId(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

std::string NewRequestId() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }()};
  char text[24];
  std::snprintf(text, sizeof(text), "ps-%016" PRIx64, static_cast<uint64_t>(generator()));
  return text;
}

bool IsTraceparent(std::string_view text) {
  if (text.size() != 55 || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  const std::string_view version = text.substr(0, 2);
  const std::string_view trace = text.substr(3, 32);
  const std::string_view parent = text.substr(36, 16);
  return IsHex(version, 2) && version != "ff" && IsHex(trace, 32) && !IsZero(trace) &&
         IsHex(parent, 16) && !IsZero(parent) && IsHex(text.substr(53), 2);
}

}  // namespace polysketch
