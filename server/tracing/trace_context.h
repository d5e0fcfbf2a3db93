// Where the spans of a call belong (W3C Trace Context).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

struct TraceContext {
  std::string trace_id;
  std::string parent_id;  // empty: the call begins its trace
};

// Returns the context of a call with this traceparent (IsTraceparent), or, if it is empty, that of
// a new trace, in `sample_percent` of 100 calls. nullopt: the call has no spans, since its caller
// does not record the trace, or by chance.
std::optional<TraceContext> SampleCall(std::string_view traceparent, int64_t sample_percent);

// A random id that is not zero.
std::string NewTraceId();
std::string NewSpanId();

}  // namespace polysketch
