// HTTP/1.1 on Boost.Beast: one thread reads requests and writes responses of all connections.
// Handlers run on that thread and answer later, from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace polysketch {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Names of headers have no case.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

inline constexpr char kRequestIdHeader[] = "x-request-id";

struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without the query: "/v1/models"
  HttpHeaders
      headers;  // with x-request-id, the server's own if the client's is missing or malformed
  std::string body;
  std::string peer;  // "ipv4:127.0.0.1:4711"

  // The value of a header, whatever the case of its name; empty if the client did not send it.
  std::string_view Header(std::string_view name) const;
};

// One request and its response: Reply, or StartStream, any number of Send and EndStream. Thread-safe.
// Once the client has left, what is sent is dropped.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // Sends the whole response.
  virtual void Reply(int status, std::string_view content_type, std::string body,
                     HttpHeaders headers = {}) = 0;
  // Sends a response in pieces.
  virtual void StartStream(std::string_view content_type, HttpHeaders headers = {}) = 0;
  virtual void Send(std::string piece) = 0;
  virtual void EndStream() = 0;

  // Bytes of Send that the socket has not taken.
  virtual size_t unsent_bytes() const = 0;
  // `on_sent` runs on the thread of the server each time when the socket has taken bytes.
  // `on_gone` runs there once, if the client leaves before the end of the response, or has left.
  // Both are destroyed at the end of the response.
  virtual void SetCallbacks(std::function<void()> on_sent, std::function<void()> on_gone) = 0;
  // Runs `work` on the thread of the server.
  virtual void Post(std::function<void()> work) = 0;
};

struct HttpLimits {
  int64_t max_connections = 256;  // more are closed on arrival
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

  // Listens on `address`: "HOST:PORT" with a numeric host ("[::1]:8000"); port 0 binds a free one.
  // INVALID_ARGUMENT for another form, UNAVAILABLE when the address cannot be bound.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                   const HttpLimits& limits, Handler handler);
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
