// HTTP/1.1 for people and probes, on civetweb, which prometheus-cpp has brought into the process
// already. Serves no files; every request goes to one handler.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct mg_connection;
struct mg_context;

namespace polysketch {

// One request and its answer, on a thread of the server's.
class HttpExchange {
 public:
  explicit HttpExchange(mg_connection* connection) : connection_(connection) {}

  std::string_view method() const;
  std::string_view path() const;
  // Empty when the client sent none.
  std::string_view Header(const char* name) const;
  // INVALID_ARGUMENT without a Content-Length or beyond `most` bytes, CANCELLED when the client
  // went away.
  Result<std::string> ReadBody(size_t most);

  // The whole answer.
  void Reply(int status, std::string_view content_type, std::string_view body);
  // Or an answer in pieces. Send is false once the client has gone.
  void StartStream(std::string_view content_type);
  bool Send(std::string_view piece);
  void EndStream();

 private:
  mg_connection* const connection_;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpExchange*)>;

  // "HOST:PORT" with a numeric host; port 0 takes a free one. INVALID_ARGUMENT for another form,
  // UNAVAILABLE when it cannot be bound. Requests run on `threads` threads; more wait.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& address, int threads,
                                                   Handler handler);
  // Waits for requests that run.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The real address: "127.0.0.1:8080".
  const std::string& address() const { return address_; }

 private:
  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {}

  const Handler handler_;
  mg_context* context_ = nullptr;
  std::string address_;
};

}  // namespace polysketch
