#include "server/tracing/trace_context.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "server/convert/random_bits.h"

namespace polysketch {
namespace {

// Lengths of the parts of a traceparent: "00-", the trace id, "-", the parent id, "-", the flags.
constexpr size_t kTraceIdAt = 3;
constexpr size_t kTraceIdDigits = 32;
constexpr size_t kParentIdAt = kTraceIdAt + kTraceIdDigits + 1;
constexpr size_t kParentIdDigits = 16;
constexpr size_t kFlagsAt = kParentIdAt + kParentIdDigits + 1;

// Whether the lowest bit of a hexadecimal digit is set.
bool IsOdd(char digit) { return (digit <= '9' ? digit - '0' : digit - 'a' + 10) % 2 == 1; }

}  // namespace

std::optional<TraceContext> SampleCall(std::string_view traceparent, int64_t sample_percent) {
  if (traceparent.empty()) {
    if (static_cast<int64_t>(RandomBits() % 100) >= sample_percent) return std::nullopt;
    return TraceContext{.trace_id = NewTraceId(), .parent_id = ""};
  }
  const bool sampled = IsOdd(traceparent[kFlagsAt + 1]);
  if (!sampled) return std::nullopt;
  return TraceContext{.trace_id = std::string(traceparent.substr(kTraceIdAt, kTraceIdDigits)),
                      .parent_id = std::string(traceparent.substr(kParentIdAt, kParentIdDigits))};
}

std::string NewSpanId() {
  char text[kParentIdDigits + 1];
  std::snprintf(text, sizeof(text), "%016" PRIx64, std::max<uint64_t>(RandomBits(), 1));
  return text;
}

std::string NewTraceId() { return NewSpanId() + NewSpanId(); }

}  // namespace polysketch
