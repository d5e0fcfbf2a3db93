#include "server/convert/request_id.h"

#include <cinttypes>
#include <cstdio>
#include <regex>

#include "server/convert/random_bits.h"

namespace polysketch {

bool IsRequestId(std::string_view text) {
  constexpr std::string_view kCharacters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-";
  return !text.empty() && text.size() <= 128 &&
         text.find_first_not_of(kCharacters) == std::string_view::npos;
}

std::string NewRequestId() {
  char text[24];
  std::snprintf(text, sizeof(text), "ps-%016" PRIx64, RandomBits());
  return text;
}

bool IsTraceparent(std::string_view text) {
  static const std::regex form(
      "(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}");
  return std::regex_match(text.begin(), text.end(), form);
}

}  // namespace polysketch
