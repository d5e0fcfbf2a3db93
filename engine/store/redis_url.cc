#include "engine/store/redis_url.h"

#include <charconv>
#include <string_view>

namespace polysketch {
namespace {

constexpr std::string_view kScheme = "redis://";
constexpr std::string_view kTlsSchemes[] = {"rediss://", "valkeys://"};
constexpr std::string_view kPasswordFile = "password_file=";

Status ParseNumber(std::string_view text, const char* what, int max, int* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  if (text.empty() || stop != end || error != std::errc() || *number < 0 || *number > max) {
    return InvalidArgument("redis URL: ", what, ": expected 0 to ", max, ", found \"", text, "\"");
  }
  return Status();
}

}  // namespace

Result<RedisUrl> ParseRedisUrl(const std::string& url) {
  std::string_view rest = url;
  for (const std::string_view scheme : kTlsSchemes) {
    if (!rest.starts_with(scheme)) continue;
    return InvalidArgument(
        "redis URL: the server speaks no TLS with Redis: expected redis:// and the "
        "address of a proxy that does, found ",
        scheme, " (docs/operations.md, Redis with TLS)");
  }
  if (!rest.starts_with(kScheme)) {
    return InvalidArgument("redis URL: expected redis://HOST:PORT, found \"", url, "\"");
  }
  rest.remove_prefix(kScheme.size());
  RedisUrl parsed;
  if (const size_t question = rest.find('?'); question != std::string_view::npos) {
    const std::string_view query = rest.substr(question + 1);
    if (!query.starts_with(kPasswordFile) || query.size() == kPasswordFile.size()) {
      return InvalidArgument("redis URL: expected ?password_file=PATH, found \"?", query, "\"");
    }
    parsed.password_file = query.substr(kPasswordFile.size());
    rest = rest.substr(0, question);
  }
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    PS_RETURN_IF_ERROR(ParseNumber(rest.substr(slash + 1), "database", 65535, &parsed.database));
    rest = rest.substr(0, slash);
  }
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    parsed.user = rest.substr(0, at);
    if (parsed.user.find(':') != std::string::npos) {
      return InvalidArgument(
          "redis URL: expected the password in ?password_file=PATH, found one in the URL");
    }
    rest = rest.substr(at + 1);
  }
  const bool bracketed = rest.starts_with('[');
  const size_t colon = bracketed ? rest.find(':', rest.find(']')) : rest.rfind(':');
  if (colon != std::string_view::npos) {
    PS_RETURN_IF_ERROR(ParseNumber(rest.substr(colon + 1), "port", 65535, &parsed.port));
    rest = rest.substr(0, colon);
  }
  if (bracketed && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) return InvalidArgument("redis URL: expected a host, found \"", url, "\"");
  parsed.host = rest;
  return parsed;
}

}  // namespace polysketch
