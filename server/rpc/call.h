// What every call of polysketch.v1 does at its beginning and end: it is counted against its
// connection, gets its ids, and leaves one line in the log.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/request/request.h"
#include "server/net/counted_call.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// A call of polysketch.v1.
class Call {
 public:
  // Takes x-request-id and traceparent, or makes an id, and sends both back as initial metadata;
  // takes x-tenant-id.
  Call(std::string_view rpc, ServiceContext* service, grpc::CallbackServerContext* context);

  // Why it must not run: RESOURCE_EXHAUSTED (too many calls), UNAVAILABLE (loading, draining,
  // connection closed) or INVALID_ARGUMENT (a bad x-tenant-id).
  Status Admission() const;
  ServiceContext* service() const { return service_; }
  // Not null once Admission was OK.
  const ServedModel* model() const { return model_; }
  const RequestInfo& info() const { return info_; }
  bool DeadlinePassed() const { return Clock::now() >= info_.deadline; }
  // Logs and counts how it ended; once, before or after OnRpcDone. `finish`: null when it never
  // reached the engine.
  void OnEnd(const Status& status, const FinishEvent* finish) const;
  // In OnDone, once.
  void OnRpcDone() { counted_.End(); }

 private:
  const std::string_view rpc_;
  ServiceContext* const service_;
  CountedCall counted_;
  const ServedModel* const model_;
  RequestInfo info_;
  bool bad_tenant_ = false;
  std::string peer_;
};

}  // namespace polysketch
