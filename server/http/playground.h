// Completions for the status page: receives the JSON form of CompleteRequest and sends a line of
// JSON for each CompleteResponse. Requests pass the same checks as a gRPC call and run on the same
// engine.
#pragma once

#include <atomic>
#include <semaphore>

#include "server/http/http_server.h"
#include "server/rpc/call.h"

namespace polysketch {

// Thread-safe.
class Playground {
 public:
  explicit Playground(ServiceContext* service) : service_(service) {}

  // Answers a POST. An error before the first token is an HTTP status; a later error is the last
  // line, {"error": {"code": ..., "message": ...}}.
  void Complete(HttpExchange* exchange);
  // Ends running completions and refuses new ones. Returns when their last lines are written
  // (civetweb writes nothing once it stops), or after a second.
  void Stop();

 private:
  Status Check(const HttpExchange& exchange) const;
  Result<GenerateRequest> Read(HttpExchange* exchange, bool* with_logprobs) const;
  void Serve(HttpExchange* exchange);
  // Sends events up to the last one, which it returns. `ready` is released when `events` has
  // events.
  using Semaphore = std::counting_semaphore<>;
  FinishEvent Stream(HttpExchange* exchange, RequestId id, bool with_logprobs, EventStream* events,
                     Semaphore* ready);

  ServiceContext* const service_;
  std::atomic<int> running_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace polysketch
