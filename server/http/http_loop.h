// What an HttpServer is started with, and what its connections and exchanges share.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "base/shares.h"
#include "server/credentials/certificates.h"
#include "server/http/http_exchange.h"
#include "server/net/refusals.h"

namespace polysketch {

class HttpConnection;

struct HttpLimits {
  int64_t max_connections = 256;  // and requests at once of one client
  int64_t max_header_bytes = 16 << 10;
  int64_t max_header_fields = 512;
  int64_t max_body_bytes = int64_t{4} << 20;  // larger bodies get 413
  // A connection that sends no complete header, or no byte of a body, for this time is closed.
  std::chrono::milliseconds read_timeout{10'000};
  // A body that is not complete after read_timeout, and from then on slower than this, gets 408.
  int64_t least_body_bytes_per_second = 4096;
  // A connection is closed if its client reads no byte of a response for this time.
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds keep_alive{60'000};  // time between requests
  // A stream that has had nothing to send for this time gets a comment: proxies close connections
  // that are silent for a minute.
  std::chrono::milliseconds silence{15'000};
};

struct HttpGuards {
  // Runs on the thread of the server when the header of a request has arrived, before the body. An
  // error is the response, and no byte of the body is kept. May set HttpRequest::caller and
  // allowed_origin.
  std::function<Status(HttpRequest* request)> check;
  // Whether a path answers probes. Empty: none does.
  std::function<bool(std::string_view path)> is_probe;
  const CertificateStore* certificates = nullptr;  // null: no TLS. Outlives the server.
  // Bodies and whole responses that do not fit get 429. Null: not counted. Outlives the server.
  RequestMemory* memory = nullptr;
  Refusals* refusals = nullptr;  // null: not counted. Outlives the server.
};

// Runs on the thread of the server, once for each request.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;

// Used on the thread that runs `io`, but for `running`.
struct HttpLoop {
  boost::asio::io_context io{1};
  HttpLimits limits;
  HttpGuards guards;
  HttpHandler handler;
  std::unordered_set<HttpConnection*> connections;
  // Requests from their header to the end of their response, probes apart. One principal has
  // max_connections at once, and others find room for a third more.
  Shares requests;
  int64_t max_requests() const { return (4 * limits.max_connections + 2) / 3; }
  bool draining = false;
  std::atomic<int64_t> running{0};  // RunningRequest
};

// A request that a drain waits for, from its whole body, or from the drain, to its end.
class RunningRequest {
 public:
  explicit RunningRequest(HttpLoop* loop) : loop_(loop) { loop_->running.fetch_add(1); }
  ~RunningRequest() { loop_->running.fetch_sub(1); }
  RunningRequest(const RunningRequest&) = delete;
  RunningRequest& operator=(const RunningRequest&) = delete;

 private:
  HttpLoop* const loop_;
};

}  // namespace polysketch
