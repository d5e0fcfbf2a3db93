// The spans of one call of polysketch.v1: the call, and below it queue, prefill with its chunks,
// decode, and the loading and saving of states. They are made at the end of the call, from the
// times that the engine reports.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request/request.h"
#include "server/net/call_transport.h"
#include "server/rpc/service_context.h"
#include "server/tracing/trace_context.h"

namespace polysketch {

// Thread-safe.
class CallTrace {
 public:
  // What the spans of a call that has ended say. `finish`: null if the engine had no request of the
  // call. `model`: the name of the model; empty while it loads.
  struct CallEnd {
    const RequestInfo& info;
    std::string_view model;
    const Status& status;
    const FinishEvent* finish;
  };

  // `rpc`: the method's name, in static storage.
  CallTrace(std::string_view rpc, SpanExporter* exporter, const CallContext& context)
      : rpc_(rpc), exporter_(exporter), grpc_(context.is_grpc()), chat_(context.is_chat()) {}

  // Decides whether the call has spans. Called once, before the other functions.
  void Begin(std::string_view traceparent, int64_t sample_percent);
  // Whether the call has spans.
  bool active() const { return trace_.has_value(); }
  // The request was submitted to the engine.
  void OnSubmit();
  // A part of the call took the time from `start` to now. `name`: in static storage.
  void AddPart(std::string_view name, Clock::time_point start);
  // The call ends now. Called once.
  void End(const CallEnd& end) const;

 private:
  struct Part {
    std::string_view name;
    Clock::time_point start;
    Clock::time_point end;
  };

  const std::string_view rpc_;
  SpanExporter* const exporter_;  // null: no call has spans
  const bool grpc_;               // and not HTTP
  const bool chat_;
  std::optional<TraceContext> trace_;
  mutable std::mutex mutex_;
  std::optional<Clock::time_point> submitted_;  // guarded by mutex_
  std::vector<Part> parts_;                     // guarded by mutex_
};

}  // namespace polysketch
