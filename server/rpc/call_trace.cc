#include "server/rpc/call_trace.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/net/router.h"
#include "server/tracing/span_exporter.h"

namespace polysketch {
namespace {

using std::chrono::system_clock;

// Makes the spans of a call that ends when this is constructed.
class SpanMaker {
 public:
  SpanMaker(const TraceContext& trace, Clock::time_point start) : start_(start) {
    Span& root = spans_.emplace_back();
    root.trace_id = trace.trace_id;
    root.span_id = NewSpanId();
    root.parent_id = trace.parent_id;
    root.kind = SpanKind::kServer;
    root.start = ToSystem(start);
    root.end = ToSystem(now_);
  }

  Span& root() { return spans_.front(); }
  // Adds a span below the span `parent`. Times outside the call are moved to its ends. The
  // reference is valid until the next call.
  Span& Add(const std::string& parent, std::string_view name, Clock::time_point start,
            Clock::time_point end) {
    start = std::clamp(start, start_, now_);
    Span& span = spans_.emplace_back();
    span.trace_id = root().trace_id;
    span.span_id = NewSpanId();
    span.parent_id = parent;
    span.name = name;
    span.start = ToSystem(start);
    span.end = ToSystem(std::clamp(end, start, now_));
    return span;
  }
  void AddEvent(std::string_view name, Clock::time_point time) {
    root().events.push_back({std::string(name), ToSystem(std::clamp(time, start_, now_))});
  }
  std::vector<Span> Take() { return std::move(spans_); }

 private:
  system_clock::time_point ToSystem(Clock::time_point time) const {
    return system_now_ - std::chrono::duration_cast<system_clock::duration>(now_ - time);
  }

  const Clock::time_point start_;
  const Clock::time_point now_ = Clock::now();
  const system_clock::time_point system_now_ = system_clock::now();
  std::vector<Span> spans_;  // the first is that of the call
};

// Whether a status is an error of the server (semantic conventions for gRPC).
bool IsServerError(Code code) {
  switch (code) {
    case Code::kUnknown:
    case Code::kDeadlineExceeded:
    case Code::kUnimplemented:
    case Code::kInternal:
    case Code::kUnavailable:
    case Code::kDataLoss:
      return true;
    default:
      return false;
  }
}

void DescribeCall(std::string_view rpc, bool grpc, const CallTrace::CallEnd& end, Span* span) {
  span->name = StrCat(kPolySketchService, "/", rpc);
  Attributes& attributes = span->attributes;
  attributes.emplace_back(grpc ? "rpc.system.name" : "network.protocol.name",
                          grpc ? "grpc" : "http");
  attributes.emplace_back("rpc.method", span->name);
  const std::string code(CodeName(end.status.code()));
  attributes.emplace_back("rpc.response.status_code", code);
  attributes.emplace_back("polysketch.request_id", end.info.id);
  if (!end.info.tenant.empty()) attributes.emplace_back("polysketch.tenant", end.info.tenant);
  if (end.status.ok()) return;
  attributes.emplace_back("error.type", code);
  // Messages of errors quote what clients sent.
  if (IsServerError(end.status.code())) span->error = code;
}

// Of the semantic conventions where they have one.
std::string OperationOf(std::string_view rpc, bool chat) {
  if (rpc == "Score") return "score";
  if (rpc == "Append") return "append";
  return chat ? "chat" : "text_completion";
}

void DescribeGeneration(std::string_view rpc, bool chat, const CallTrace::CallEnd& end,
                        Attributes* attributes) {
  const Usage& usage = end.finish->usage;
  attributes->emplace_back("gen_ai.operation.name", OperationOf(rpc, chat));
  attributes->emplace_back("gen_ai.provider.name", "polysketch");
  attributes->emplace_back("gen_ai.request.model", std::string(end.model));
  attributes->emplace_back("gen_ai.response.id", end.info.id);
  attributes->emplace_back(
      "gen_ai.response.finish_reasons",
      std::vector<std::string>{std::string(FinishReasonName(end.finish->reason))});
  attributes->emplace_back("gen_ai.usage.input_tokens", usage.prompt_tokens);
  attributes->emplace_back("gen_ai.usage.output_tokens", usage.completion_tokens);
  attributes->emplace_back("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens);
}

// The spans of what the engine did.
void AddEngineSpans(const FinishEvent& finish, Clock::time_point arrival,
                    Clock::time_point submitted, SpanMaker* maker) {
  const Timings& timings = finish.timings;
  const std::string root = maker->root().span_id;
  const Clock::time_point admitted = arrival + timings.queue;
  maker->Add(root, "queue", submitted, admitted);
  if (timings.prefill.count() == 0) return;  // the request ended in the queue
  const Clock::time_point prefilled = admitted + timings.prefill;
  Span& prefill = maker->Add(root, "prefill", admitted, prefilled);
  prefill.attributes.emplace_back(
      "polysketch.tokens",
      std::max<int64_t>(finish.usage.prompt_tokens - finish.usage.cached_tokens, 0));
  const std::string parent = prefill.span_id;
  for (const ChunkTime& chunk : finish.chunks) {
    Span& span = maker->Add(parent, "chunk", chunk.start, std::min(chunk.end, prefilled));
    span.attributes.emplace_back("polysketch.tokens", chunk.tokens);
    span.attributes.emplace_back("polysketch.chunks", chunk.chunks);
  }
  if (finish.usage.completion_tokens == 0) return;
  maker->Add(root, "decode", prefilled, prefilled + timings.decode)
      .attributes.emplace_back("polysketch.tokens", finish.usage.completion_tokens);
  if (timings.first_token.count() > 0)
    maker->AddEvent("first_token", arrival + timings.first_token);
}

}  // namespace

void CallTrace::Begin(std::string_view traceparent, int64_t sample_percent) {
  if (exporter_ != nullptr) trace_ = SampleCall(traceparent, sample_percent);
}

void CallTrace::OnSubmit() {
  if (!active()) return;
  std::lock_guard lock(mutex_);
  submitted_ = Clock::now();
}

void CallTrace::AddPart(std::string_view name, Clock::time_point start) {
  if (!active()) return;
  std::lock_guard lock(mutex_);
  parts_.push_back({name, start, Clock::now()});
}

void CallTrace::End(const CallEnd& end) const {
  if (!active()) return;
  SpanMaker maker(*trace_, end.info.arrival);
  DescribeCall(rpc_, grpc_, end, &maker.root());
  if (end.finish != nullptr) DescribeGeneration(rpc_, chat_, end, &maker.root().attributes);
  {
    std::lock_guard lock(mutex_);
    const std::string root = maker.root().span_id;
    for (const Part& part : parts_) maker.Add(root, part.name, part.start, part.end);
    if (end.finish != nullptr)
      AddEngineSpans(*end.finish, end.info.arrival, submitted_.value_or(end.info.arrival), &maker);
  }
  exporter_->Add(maker.Take());
}

}  // namespace polysketch
