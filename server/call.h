// What every call of every service does at its beginning and end: it is counted against its
// connection, gets its ids, and leaves one line in the log.
#pragma once

#include <grpcpp/server_context.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/session/session_table.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/connections.h"
#include "server/convert.h"
#include "server/executor.h"
#include "server/metrics.h"

namespace polysketch {

class StallWatch;

// What is served. Outlives the server.
struct ServedModel {
  Engine* engine = nullptr;
  SessionTable* sessions = nullptr;           // the store thread's; its codec is for anybody
  const PrefixCache* prefix_cache = nullptr;  // null when it is off
  RequestRules rules;
  v1::GetModelResponse description;
};

// What all calls share. Outlives the server.
struct ServiceContext {
  ConnectionTable* connections = nullptr;
  Metrics* metrics = nullptr;
  // Writes to streams, off the engine thread; one thread. Shared with the engine's callbacks, the
  // last of which may come when the call that it is for, and the server, are gone.
  std::shared_ptr<Executor> writers;
  Executor* tokenizers = nullptr;  // parses and tokenizes large requests, off gRPC's pollers
  // Waits for files and the network: sessions, snapshots, stopped completions. One thread.
  std::shared_ptr<Executor> stores;
  StallWatch* stalls = nullptr;
  std::chrono::milliseconds stopped_ttl = std::chrono::minutes(10);  // of stopped completions
  size_t stream_buffer = 64;
  std::atomic<const ServedModel*> model{nullptr};  // null while loading
  std::atomic<bool> draining{false};
};

// A request larger than this is parsed and tokenized on ServiceContext::tokenizers: 16 KiB of text
// take about 5 ms.
inline constexpr size_t kInlineRequestBytes = 16 << 10;

// Counts a call of any service from its beginning to End.
class CountedCall {
 public:
  CountedCall(ConnectionTable* connections, grpc::CallbackServerContext* context)
      : connections_(connections),
        context_(context),
        call_(connections->BeginCall(context->peer())) {}
  ConnectionTable::Verdict verdict() const { return call_.verdict; }
  // In OnDone, once: the context ends with it.
  void End() { connections_->EndCall(call_, context_->IsCancelled()); }

 private:
  ConnectionTable* const connections_;
  grpc::CallbackServerContext* const context_;
  const ConnectionTable::Call call_;
};

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
