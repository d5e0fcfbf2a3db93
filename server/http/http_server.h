// HTTP/1.1 for browsers and probes, on civetweb, which prometheus-cpp uses too. Every request goes
// to one handler.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct mg_connection;
struct mg_context;

namespace polysketch {

// One request and its response. Used by the thread that the handler runs on.
class HttpExchange {
 public:
  explicit HttpExchange(mg_connection* connection) : connection_(connection) {}

  std::string_view method() const;
  std::string_view path() const;
  // The value of a header; empty if the client did not send it.
  std::string_view Header(const char* name) const;
  // INVALID_ARGUMENT without a Content-Length or above `max_bytes`, CANCELLED when the client
  // closes the connection.
  Result<std::string> ReadBody(size_t max_bytes);

  // Sends the whole response.
  void Reply(int status, std::string_view content_type, std::string_view body);
  // Sends a response in pieces. Send returns false once the client has closed the connection.
  void StartStream(std::string_view content_type);
  bool Send(std::string_view piece);
  void EndStream();

 private:
  mg_connection* const connection_;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpExchange*)>;

  // "HOST:PORT" with a numeric host; port 0 binds a free one. INVALID_ARGUMENT for another form,
  // UNAVAILABLE when the address cannot be bound. `handler` runs on `threads` threads; more
  // requests wait.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& address, int threads,
                                                   Handler handler);
  // Waits until no handler runs.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The bound address: "127.0.0.1:8080".
  const std::string& address() const { return address_; }

 private:
  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {}

  const Handler handler_;
  mg_context* context_ = nullptr;
  std::string address_;
};

}  // namespace polysketch
