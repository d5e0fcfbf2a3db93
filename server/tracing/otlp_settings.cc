#include "server/tracing/otlp_settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <utility>

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

// The next part of a list that commas separate; `list` loses it.
std::string_view TakePart(std::string_view* list) {
  const std::string_view part = list->substr(0, list->find(','));
  list->remove_prefix(std::min(list->size(), part.size() + 1));
  return part;
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
    const std::string_view part = TakePart(&list);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = Trimmed(part.substr(0, equals));
    if (key.empty()) continue;
    Set(std::string(key), PercentDecoded(Trimmed(part.substr(equals + 1))), attributes);
  }
}

// The value of the first of the variables that is set and not empty, and its name.
struct Variable {
  const char* name = "";
  std::string_view value = {};
};
Variable FirstOf(std::initializer_list<const char*> names, const Environment& environment) {
  for (const char* name : names) {
    const char* value = environment(name);
    if (value != nullptr && *value != '\0') return {name, value};
  }
  return {};
}

// Whether the variables say that no traces are sent to a collector.
bool IsTurnedOff(const Environment& environment) {
  std::string disabled(FirstOf({"OTEL_SDK_DISABLED"}, environment).value);
  std::ranges::transform(disabled, disabled.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (disabled == "true") return true;
  std::string_view exporters = FirstOf({"OTEL_TRACES_EXPORTER"}, environment).value;
  if (exporters.empty()) return false;
  while (!exporters.empty()) {
    if (Trimmed(TakePart(&exporters)) == "otlp") return false;
  }
  return true;
}

bool IsHeaderName(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::ranges::all_of(name, [&](unsigned char c) {
    return std::isalnum(c) != 0 || kMarks.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// "name=value,name=value", values percent-encoded.
Result<PostHeaders> ParseHeaders(std::string_view list) {
  PostHeaders headers;
  for (int number = 1; !list.empty(); ++number) {
    const std::string_view part = Trimmed(TakePart(&list));
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::string_view name = Trimmed(part.substr(0, equals));
    if (equals == std::string_view::npos || !IsHeaderName(name)) {
      return InvalidArgument("expected NAME=VALUE and commas between such, found another part ",
                             number);
    }
    std::string value = PercentDecoded(Trimmed(part.substr(equals + 1)));
    if (std::ranges::any_of(value, [](unsigned char c) { return c < ' ' || c == 0x7f; }))
      return InvalidArgument("expected a value without control characters in part ", number);
    headers.emplace_back(name, std::move(value));
  }
  return headers;
}

Status CheckUrl(std::string_view endpoint) {
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
  return Status();
}

}  // namespace

Result<std::string> TracesUrl(std::string_view endpoint) {
  PS_RETURN_IF_ERROR(CheckUrl(endpoint));
  while (endpoint.ends_with('/')) endpoint.remove_suffix(1);
  if (endpoint.ends_with(kTracesPath)) return std::string(endpoint);
  return StrCat(endpoint, kTracesPath);
}

Result<OtlpTarget> OtlpTargetOf(const std::string& endpoint, std::string_view flag,
                                const Environment& environment) {
  OtlpTarget target;
  if (!endpoint.empty()) {
    Result<std::string> url = TracesUrl(endpoint);
    if (!url.ok()) return InvalidArgument(flag, ": ", url.status().message());
    target.url = *std::move(url);
  } else {
    constexpr char kOfTraces[] = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const Variable named = FirstOf({kOfTraces, "OTEL_EXPORTER_OTLP_ENDPOINT"}, environment);
    if (named.value.empty() || IsTurnedOff(environment)) return target;
    const Variable protocol =
        FirstOf({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}, environment);
    if (!protocol.value.empty() && !protocol.value.starts_with("http/")) {
      return InvalidArgument(protocol.name, ": expected http/json or http/protobuf, found \"",
                             protocol.value, "\"");
    }
    if (const Status status = CheckUrl(named.value); !status.ok())
      return InvalidArgument(named.name, ": ", status.message());
    PS_ASSIGN_OR_RETURN(target.url, named.name == std::string_view(kOfTraces)
                                        ? Result<std::string>(std::string(named.value))
                                        : TracesUrl(named.value));
  }
  const Variable list =
      FirstOf({"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}, environment);
  Result<PostHeaders> headers = ParseHeaders(list.value);
  if (!headers.ok()) return InvalidArgument(list.name, ": ", headers.status().message());
  target.headers = *std::move(headers);
  return target;
}

Attributes ResourceAttributes(const Environment& environment) {
  Attributes attributes = {{kServiceName, "polysketch-server"},
                           {"service.version", POLYSKETCH_VERSION}};
  if (const char* list = environment("OTEL_RESOURCE_ATTRIBUTES")) AddList(list, &attributes);
  const char* name = environment("OTEL_SERVICE_NAME");
  if (name != nullptr && *name != '\0') Set(kServiceName, name, &attributes);
  return attributes;
}

}  // namespace polysketch
