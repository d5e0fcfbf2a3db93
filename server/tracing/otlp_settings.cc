#include "server/tracing/otlp_settings.h"

#include <algorithm>
#include <charconv>

#include "polysketch_build_info.h"

namespace polysketch {
namespace {

constexpr std::string_view kTracesPath = "/v1/traces";
constexpr char kServiceName[] = "service.name";

// Replaces %XX by the byte. A % without two digits after it stays.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// Sets the attribute, which replaces one of the same key.
void Set(const std::string& key, std::string value, Attributes* attributes) {
  const auto found = std::ranges::find(*attributes, key, &Attributes::value_type::first);
  if (found != attributes->end()) {
    found->second = std::move(value);
  } else {
    attributes->emplace_back(key, std::move(value));
  }
}

void AddList(std::string_view list, Attributes* attributes) {
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), part.size() + 1));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = Trimmed(part.substr(0, equals));
    if (key.empty()) continue;
    Set(std::string(key), PercentDecoded(Trimmed(part.substr(equals + 1))), attributes);
  }
}

}  // namespace

Result<std::string> TracesUrl(std::string_view endpoint) {
  std::string_view rest = endpoint;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (endpoint.starts_with(scheme)) rest.remove_prefix(scheme.size());
  }
  const bool printable = std::ranges::all_of(endpoint, [](char c) { return c > ' ' && c < 0x7f; });
  if (rest.size() == endpoint.size() || rest.empty() || rest.front() == '/' || !printable ||
      rest.find_first_of("@?#") != std::string_view::npos) {
    return InvalidArgument("expected http://HOST:PORT or https://HOST:PORT, found \"", endpoint,
                           "\"");
  }
  while (endpoint.ends_with('/')) endpoint.remove_suffix(1);
  if (endpoint.ends_with(kTracesPath)) return std::string(endpoint);
  return StrCat(endpoint, kTracesPath);
}

Attributes ResourceAttributes(const std::function<const char*(const char*)>& environment) {
  Attributes attributes = {{kServiceName, "polysketch-server"},
                           {"service.version", POLYSKETCH_VERSION}};
  if (const char* list = environment("OTEL_RESOURCE_ATTRIBUTES")) AddList(list, &attributes);
  const char* name = environment("OTEL_SERVICE_NAME");
  if (name != nullptr && *name != '\0') Set(kServiceName, name, &attributes);
  return attributes;
}

}  // namespace polysketch
