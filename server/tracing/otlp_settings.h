// What --otlp-endpoint and OpenTelemetry's environment variables say.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/tracing/http_post.h"
#include "server/tracing/span.h"

namespace polysketch {

// The URL to which spans are posted: `endpoint` with /v1/traces after it, unless it ends so. An
// error if `endpoint` is no http:// or https:// URL, or holds a user name, a query or a fragment.
Result<std::string> TracesUrl(std::string_view endpoint);

// Returns the value of an environment variable, or null.
using Environment = std::function<const char*(const char*)>;

// Where spans go. url is empty: nowhere.
struct OtlpTarget {
  std::string url;
  PostHeaders headers = {};
};

// The target that `endpoint` names or, if it is empty, OpenTelemetry's variables:
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, the URL itself, or OTEL_EXPORTER_OTLP_ENDPOINT, below which
// the path of traces is. The headers are those of OTEL_EXPORTER_OTLP_TRACES_HEADERS or
// OTEL_EXPORTER_OTLP_HEADERS. OTEL_SDK_DISABLED, and an OTEL_TRACES_EXPORTER without otlp, turn off
// what the variables name, not `endpoint`. Errors name the variable, and `flag` for `endpoint`;
// they do not quote headers, which hold credentials.
Result<OtlpTarget> OtlpTargetOf(const std::string& endpoint, std::string_view flag,
                                const Environment& environment);

// service.name and service.version of this server, and the attributes of OTEL_RESOURCE_ATTRIBUTES
// ("key=value,key=value", percent-encoded). OTEL_SERVICE_NAME replaces service.name. Parts of the
// variable that are malformed are left out.
Attributes ResourceAttributes(const Environment& environment);

}  // namespace polysketch
