// The calls of the status page. /api/complete receives the JSON form of CompleteRequest and sends a line of
// JSON for each CompleteResponse; /api/sessions/NAME runs an RPC of sessions, whose request and response
// have their JSON form.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>

#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// Used on the thread of the HTTP server.
class Playground {
 public:
  // Both outlive the calls.
  Playground(const Router* router, ServiceContext* service) : router_(router), service_(service) {}

  // Whether Handle answers the path.
  static bool IsPath(std::string_view path);
  // An error of a completion before the first message is an HTTP status; a later error is the last line,
  // {"error": {"code": ..., "message": ...}}.
  void Handle(const std::shared_ptr<HttpExchange>& exchange);

 private:
  void Complete(const std::shared_ptr<HttpExchange>& exchange);

  const Router* const router_;
  ServiceContext* const service_;
  const std::shared_ptr<std::atomic<int>> running_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace polysketch
