#include "server/http/http_exchange.h"

#include <algorithm>

namespace polysketch {

// boost::beast::iequals of Boost 1.81 reads one byte past the end of texts that differ in case.
bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoringCase(key, name)) return value;
  }
  return {};
}

std::vector<std::string_view> HttpRequest::Headers(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoringCase(key, name)) values.emplace_back(value);
  }
  return values;
}

void HttpRequest::SetHeader(std::string_view name, std::string value) {
  std::erase_if(headers, [name](const auto& h) { return EqualsIgnoringCase(h.first, name); });
  headers.emplace_back(name, std::move(value));
}

}  // namespace polysketch
