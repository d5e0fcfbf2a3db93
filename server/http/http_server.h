// HTTP/1.1, with or without TLS, on Boost.Beast: one thread reads requests and writes responses of
// all connections. Handlers run on that thread and answer later, from any thread.
//
// When max_connections are open, a new one gets in: of the peer with the most connections, the one is
// closed that has waited longest without a request, or has sent its body longest. A connection whose
// request runs is never closed for another. If all of them run requests, kProbeConnections more are
// open to probes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/credentials/certificates.h"
#include "server/http/http_exchange.h"

namespace polysketch {

struct HttpLimits {
  int64_t max_connections = 256;
  int64_t max_header_bytes = 16 << 10;
  int64_t max_body_bytes = int64_t{4} << 20;  // larger bodies get 413
  // A connection that sends no complete header, or no byte of a body, for this time is closed.
  std::chrono::milliseconds read_timeout{10'000};
  // A connection is closed if its client reads no byte of a response for this time.
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds keep_alive{60'000};  // time between requests
};

class HttpServer {
 public:
  // Runs on the thread of the server, once for each request.
  using Handler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;
  struct Guards {
    // Runs on the thread of the server when the header of a request has arrived, before the body. An
    // error is the response, and no byte of the body is kept. May set HttpRequest::caller and
    // allowed_origin.
    std::function<Status(HttpRequest* request)> check;
    // Whether a path answers probes. Empty: none does.
    std::function<bool(std::string_view path)> is_probe;
    const CertificateStore* certificates = nullptr;  // null: no TLS. Outlives the server.
    // Bodies and whole responses that do not fit get 429. Null: not counted. Outlives the server.
    RequestMemory* memory = nullptr;
  };

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
