#include "server/rpc/call.h"

#include <algorithm>
#include <cstdio>

#include "base/logging.h"
#include "server/convert/request_id.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

constexpr char kTraceparentKey[] = "traceparent";
constexpr char kTenantKey[] = "x-tenant-id";

// Returns the value of a key that the client sent exactly once; otherwise empty.
std::string_view Metadata(const CallContext& context, const char* key) {
  const std::vector<std::string_view> values = context.Metadata(key);
  return values.size() == 1 ? values.front() : std::string_view();
}

// Converts the deadline of the call, on the system clock, to the engine's, on the steady clock.
Clock::time_point SteadyDeadline(std::chrono::system_clock::time_point deadline,
                                 Clock::time_point now) {
  if (deadline == std::chrono::system_clock::time_point::max()) return Clock::time_point::max();
  const auto left = deadline - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) return Clock::time_point::max();
  return now + std::chrono::duration_cast<Clock::duration>(left);
}

std::string Milliseconds(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f",
                std::chrono::duration<double, std::milli>(time).count());
  return text;
}

// Tokens that the engine has processed for a request.
int64_t ProcessedTokens(const FinishEvent& finish) {
  if (finish.timings.prefill.count() == 0) return 0;  // the request ended in the queue
  const Usage& usage = finish.usage;
  return std::max<int64_t>(usage.prompt_tokens - usage.cached_tokens, 0) + usage.completion_tokens;
}

}  // namespace

std::optional<std::string> TenantOf(const Caller* caller,
                                    const std::vector<std::string_view>& sent) {
  if (caller != nullptr) return caller->key().tenant;
  if (sent.empty()) return "";
  if (sent.size() > 1 || !IsRequestId(sent.front())) return std::nullopt;
  return std::string(sent.front());
}

Call::Call(std::string_view rpc, ServiceContext* service, CallContext* context)
    : rpc_(rpc),
      service_(service),
      counted_(service->connections, context),
      caller_(context->caller()),
      model_(service->model.load()),
      trace_(rpc, service->spans, *context) {
  if (counted_.verdict() == ConnectionTable::Verdict::kAbusive)
    return;  // no client reads a response
  peer_ = context->peer();
  info_.arrival = Clock::now();
  info_.deadline = SteadyDeadline(context->deadline(), info_.arrival);
  const std::string_view id = Metadata(*context, kRequestIdKey);
  info_.id = IsRequestId(id) ? std::string(id) : NewRequestId();
  context->AddInitialMetadata(kRequestIdKey, info_.id);
  const std::optional<std::string> tenant = TenantOf(caller_.get(), context->Metadata(kTenantKey));
  bad_tenant_ = !tenant.has_value();
  info_.tenant = tenant.value_or("");
  info_.principal = PrincipalOf(caller_.get(), info_.tenant, peer_);
  if (const std::string_view trace = Metadata(*context, kTraceparentKey); IsTraceparent(trace)) {
    info_.traceparent = trace;
    context->AddInitialMetadata(kTraceparentKey, info_.traceparent);
  }
  trace_.Begin(info_.traceparent, service->trace_sample_percent);
  info_.record_chunks = trace_.active();
}

Status Call::Admission() const {
  switch (counted_.verdict()) {
    case ConnectionTable::Verdict::kAccepted:
      break;
    case ConnectionTable::Verdict::kTooMany:
      return ResourceExhausted("too many calls at once; try again later")
          .WithReason(Reason::kTooManyCalls);
    case ConnectionTable::Verdict::kAbusive:
      return Unavailable("the connection was closed: too many aborted calls");
  }
  if (service_->draining.load()) return Draining();
  if (model_ == nullptr)
    return Unavailable("the server is loading its model").WithReason(Reason::kLoading);
  if (bad_tenant_) {
    // The call is refused and not served without a tenant: a typing error must not move data to
    // another tenant.
    return InvalidArgument("x-tenant-id: expected it once, 1 to 128 characters of [A-Za-z0-9._:-]");
  }
  return Status();
}

Status Call::ReserveTokens(int64_t tokens) {
  if (caller_ == nullptr) return Status();
  const std::lock_guard lock(tokens_mutex_);
  if (settled_) return Status();  // the call is over
  PS_ASSIGN_OR_RETURN(const int64_t taken, caller_->ReserveTokens(tokens));
  ++reservations_;
  reserved_tokens_ += taken;
  return Status();
}

void Call::SettleTokens(int64_t used) {
  if (caller_ == nullptr) return;
  const std::lock_guard lock(tokens_mutex_);
  settled_ = true;
  caller_->SettleTokens(reservations_, reserved_tokens_, used);
}

void Call::OnEnd(const Status& status, const FinishEvent* finish) {
  SettleTokens(finish == nullptr ? 0 : ProcessedTokens(*finish));
  if (counted_.verdict() == ConnectionTable::Verdict::kAbusive)
    return;  // the log line of the connection is enough
  const bool refused = finish == nullptr && !status.ok();
  service_->metrics->OnRpc(rpc_, status.code(), refused);
  trace_.End({.info = info_,
              .model = model_ == nullptr ? std::string_view() : model_->description.name(),
              .status = status,
              .finish = finish});
  // A request that lost its place in the queue is refused too.
  const bool displaced = finish != nullptr && status.code() == Code::kResourceExhausted &&
                         finish->timings.prefill.count() == 0;
  if ((refused || displaced) && !service_->refusals->Count(status)) return;
  const FinishEvent nothing;
  const FinishEvent& f = finish == nullptr ? nothing : *finish;
  LogInfo("request_done",
          {{"id", info_.id},
           {"traceparent", info_.traceparent},
           {"key", caller_ == nullptr ? std::string_view() : caller_->key().name},
           {"tenant", info_.tenant},
           {"rpc", rpc_},
           {"peer", peer_},
           {"status", CodeName(status.code())},
           {"message", ShownMessage(status)},
           {"reason", status.ok() ? std::string_view() : status.reason()},
           {"finish", finish == nullptr ? std::string_view("none") : FinishReasonName(f.reason)},
           {"prompt_tokens", f.usage.prompt_tokens},
           {"completion_tokens", f.usage.completion_tokens},
           {"queue_ms", Milliseconds(f.timings.queue)},
           {"first_token_ms", Milliseconds(f.timings.first_token)},
           {"prefill_ms", Milliseconds(f.timings.prefill)},
           {"decode_ms", Milliseconds(f.timings.decode)},
           {"total_ms", Milliseconds(Clock::now() - info_.arrival)}});
}

}  // namespace polysketch
