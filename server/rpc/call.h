// The start and the end of every call of polysketch.v1: it is counted against its connection, gets
// its ids, and ends with one line in the log and with its spans.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request/request.h"
#include "server/net/counted_call.h"
#include "server/net/peer.h"
#include "server/rpc/call_trace.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// The tenant of a call: that of its API key, or `sent`, the values of x-tenant-id. nullopt: the
// client sent it malformed or more than once. `caller` may be null.
std::optional<std::string> TenantOf(const Caller* caller,
                                    const std::vector<std::string_view>& sent);

// Thread-safe: immutable except for OnRpcDone.
class Call {
 public:
  // Reads x-request-id (or makes an id), traceparent and x-tenant-id from the metadata, and adds
  // the first two to the initial metadata of the response. With API keys the tenant is the key's.
  // `rpc`: the method's name, in static storage.
  Call(std::string_view rpc, ServiceContext* service, CallContext* context);

  // OK, or why the call must not run: RESOURCE_EXHAUSTED (too many calls), UNAVAILABLE (loading,
  // draining, connection closed) or INVALID_ARGUMENT (a bad x-tenant-id).
  Status Admission() const;
  ServiceContext* service() const { return service_; }
  // Not null after an OK Admission.
  const ServedModel* model() const { return model_; }
  const RequestInfo& info() const { return info_; }
  CallTrace& trace() { return trace_; }
  // Whom the tokenizer pool works for: the connections of a client are parts of it.
  Principal tokenizes_for() const { return OfConnection(info_.principal, peer_); }
  // Memory that the call makes the server hold.
  HeldMemory NewMemory(RequestPhase phase) const {
    return {service_->memory, phase, info_.principal};
  }
  // Null without API keys.
  const Caller* caller() const { return caller_.get(); }
  // Takes tokens that the call may process from the minute of its API key (Caller::ReserveTokens).
  Status ReserveTokens(int64_t tokens);
  bool DeadlinePassed() const { return Clock::now() >= info_.deadline; }
  // Logs, counts and traces the end of the call, and settles its tokens. Called once, before or
  // after OnRpcDone. `finish`: null if the engine had no request of the call.
  void OnEnd(const Status& status, const FinishEvent* finish);
  // Called once, in OnDone.
  void OnRpcDone() { counted_.End(); }

 private:
  void SettleTokens(int64_t used);

  const std::string_view rpc_;
  ServiceContext* const service_;
  CountedCall counted_;
  const std::shared_ptr<const Caller> caller_;  // null without API keys
  const ServedModel* const model_;
  RequestInfo info_;
  CallTrace trace_;
  bool bad_tenant_ = false;
  std::mutex tokens_mutex_;
  // Guarded by tokens_mutex_:
  bool settled_ = false;
  int reservations_ = 0;
  int64_t reserved_tokens_ = 0;
  std::string peer_;
};

}  // namespace polysketch
