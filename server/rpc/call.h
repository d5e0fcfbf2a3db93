// The start and the end of every call of polysketch.v1: it is counted against its connection, gets
// its ids, and ends with one line in the log and with its spans.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/request/request.h"
#include "server/net/counted_call.h"
#include "server/rpc/call_trace.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// The owner of work for a tenant, which may be empty, and a client at `peer` ("ipv4:127.0.0.1:4711").
// Its group is what all shares are by (ClientOf, HostOf).
TokenizerPool::Owner OwnerOf(const std::string& tenant, const std::string& peer);

// Thread-safe: immutable except for OnRpcDone.
class Call {
 public:
  // Reads x-request-id (or makes an id), traceparent and x-tenant-id from the metadata, and adds
  // the first two to the initial metadata of the response. With API keys the tenant is the key's. `rpc`: the method's name, in static
  // storage.
  Call(std::string_view rpc, ServiceContext* service, CallContext* context);

  // OK, or why the call must not run: RESOURCE_EXHAUSTED (too many calls), UNAVAILABLE (loading,
  // draining, connection closed) or INVALID_ARGUMENT (a bad x-tenant-id).
  Status Admission() const;
  ServiceContext* service() const { return service_; }
  // Not null after an OK Admission.
  const ServedModel* model() const { return model_; }
  const RequestInfo& info() const { return info_; }
  CallTrace& trace() { return trace_; }
  // Whom the tokenizer pool and the threads of sessions work for.
  TokenizerPool::Owner owner() const {
    return {.group = ClientOf(info_.tenant, info_.host), .connection = peer_};
  }
  // Memory that the call makes the server hold.
  HeldMemory NewMemory(RequestPhase phase) const {
    return {service_->memory, phase, MemoryClient(caller_.get(), peer_)};
  }
  // Null without API keys.
  const Caller* caller() const { return caller_.get(); }
  bool DeadlinePassed() const { return Clock::now() >= info_.deadline; }
  // Logs, counts and traces the end of the call. Called once, before or after OnRpcDone. `finish`:
  // null if the engine had no request of the call.
  void OnEnd(const Status& status, const FinishEvent* finish) const;
  // Called once, in OnDone.
  void OnRpcDone() { counted_.End(); }

 private:
  const std::string_view rpc_;
  ServiceContext* const service_;
  CountedCall counted_;
  const std::shared_ptr<const Caller> caller_;  // null without API keys
  const ServedModel* const model_;
  RequestInfo info_;
  CallTrace trace_;
  bool bad_tenant_ = false;
  std::string peer_;
};

}  // namespace polysketch
