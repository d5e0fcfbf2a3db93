// Completions for the status page: the JSON form of CompleteRequest in, a line of JSON for each
// CompleteResponse out. The same checks and the same engine as a call of Complete.
#pragma once

#include <atomic>

#include "server/http/http_server.h"
#include "server/rpc/call.h"

namespace polysketch {

// Thread-safe.
class Playground {
 public:
  explicit Playground(ServiceContext* service) : service_(service) {}

  // Answers a POST. An error before the first token is an HTTP status, a later one a last line
  // {"error": {"code": ..., "message": ...}}.
  void Complete(HttpExchange* exchange);
  // Ends what runs and refuses the rest; returns when the last lines are written (civetweb writes
  // nothing more once it stops), or after a second.
  void Stop();

 private:
  Status Check(const HttpExchange& exchange) const;
  Result<GenerateRequest> Read(HttpExchange* exchange, bool* with_logprobs) const;
  void Serve(HttpExchange* exchange);
  // Writes events until the last; what the request ended with.
  FinishEvent Stream(HttpExchange* exchange, RequestId id, bool with_logprobs, EventStream* events,
                     class Wakeup* wakeup);

  ServiceContext* const service_;
  std::atomic<int> running_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace polysketch
