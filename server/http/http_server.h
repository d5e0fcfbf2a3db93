// HTTP/1.1, with or without TLS, on Boost.Beast: one thread reads requests and writes responses of
// all connections. Handlers run on that thread and answer later, from any thread.
//
// When max_connections are open, a new one gets in: of the client with the most connections, the one is
// closed that has waited longest without a request, or has sent its body longest. A connection whose
// request runs is never closed for another. If all of them run requests, a third more are open to
// clients that run less than their share (base/shares.h), and kProbeConnections to probes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http/http_exchange.h"
#include "server/http/http_settings.h"

namespace polysketch {

class HttpServer {
 public:
  using Handler = HttpHandler;
  using Guards = HttpGuards;

  static constexpr int64_t kProbeConnections = 16;

  // Listens on `address`: "HOST:PORT" with a numeric host ("[::1]:8000") or localhost, which is
  // 127.0.0.1; port 0 binds a free one.
  // INVALID_ARGUMENT for another form, UNAVAILABLE when the address cannot be bound.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                   const HttpLimits& limits, Guards guards,
                                                   Handler handler);
  // Closes all connections: handlers' exchanges report on_gone before the destructor returns.
  virtual ~HttpServer() = default;

  // The bound address: "127.0.0.1:8080".
  virtual const std::string& address() const = 0;
  // Accepts no more connections, and closes each one at the end of its response.
  virtual void Drain() = 0;
  // Number of requests without a complete response.
  virtual int64_t running() const = 0;
};

}  // namespace polysketch
