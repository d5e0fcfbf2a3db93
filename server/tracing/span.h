// Spans of OpenTelemetry as plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace polysketch {

using AttributeValue = std::variant<std::string, int64_t, std::vector<std::string>>;
using Attributes = std::vector<std::pair<std::string, AttributeValue>>;

// The values are those of OTLP.
enum class SpanKind : int { kInternal = 1, kServer = 2 };

struct SpanEvent {
  std::string name;
  std::chrono::system_clock::time_point time;
};

struct Span {
  std::string trace_id;   // 32 hexadecimal digits, lower case
  std::string span_id;    // 16
  std::string parent_id;  // 16, or empty: the span is the root of its trace
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  std::chrono::system_clock::time_point start;
  std::chrono::system_clock::time_point end;
  Attributes attributes = {};
  std::vector<SpanEvent> events = {};
  std::string error = {};  // empty: no error
};

}  // namespace polysketch
