// What --otlp-endpoint and OpenTelemetry's environment variables say.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/tracing/span.h"

namespace polysketch {

// The URL to which spans are posted: `endpoint` with /v1/traces after it, unless it ends so. An
// error if `endpoint` is no http:// or https:// URL, or holds a user name, a query or a fragment.
Result<std::string> TracesUrl(std::string_view endpoint);

// service.name and service.version of this server, and the attributes of OTEL_RESOURCE_ATTRIBUTES
// ("key=value,key=value", percent-encoded). OTEL_SERVICE_NAME replaces service.name. Parts of the
// variable that are malformed are left out. `environment` returns the value of a variable or null.
Attributes ResourceAttributes(const std::function<const char*(const char*)>& environment);

}  // namespace polysketch
