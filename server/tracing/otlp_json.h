// Spans as the body of a request of OTLP/HTTP with JSON (ExportTraceServiceRequest).
#pragma once

#include <span>
#include <string>

#include "server/tracing/span.h"

namespace polysketch {

// `resource`: attributes of the process. Bytes of strings that are not UTF-8 become U+FFFD.
std::string OtlpJson(const Attributes& resource, std::span<const Span> spans);

}  // namespace polysketch
