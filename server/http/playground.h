// Completions for the status page: receives the JSON form of CompleteRequest and sends a line of
// JSON for each CompleteResponse. Completions are Complete calls (server/http/http_call.h).
#pragma once

#include <atomic>
#include <memory>

#include "server/http/http_exchange.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// Used on the thread of the HTTP server.
class Playground {
 public:
  // `service` outlives the completions.
  explicit Playground(ServiceContext* service) : service_(service) {}

  // Answers a POST. An error before the first message is an HTTP status; a later error is the last
  // line, {"error": {"code": ..., "message": ...}}.
  void Complete(const std::shared_ptr<HttpExchange>& exchange);

 private:
  ServiceContext* const service_;
  const std::shared_ptr<std::atomic<int>> running_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace polysketch
