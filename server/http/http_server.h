// HTTP/1.1, with or without TLS, on Boost.Beast: one thread reads requests and writes responses of
// all connections. Handlers run on that thread and answer later, from any thread.
//
// When max_connections are open, a new one gets in: of the client with the most connections, the
// one is closed that has waited longest without a request, or has sent its body longest. A
// connection whose request runs is never closed for another. If all of them run requests, a third
// more are open to clients that run less than their share (base/shares.h), and kProbeConnections to
// probes.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/status.h"
#include "server/http/http_exchange.h"
#include "server/http/http_loop.h"

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
  ~HttpServer();

  // The bound address: "127.0.0.1:8080".
  const std::string& address() const { return address_; }
  // Accepts no more connections, and closes each one at the end of its response. Requests whose body
  // still arrives are refused with `why`; from the return on they count as running.
  void Drain(const Status& why);
  // Number of requests without a complete response.
  int64_t running() const { return loop_.running.load(); }

 private:
  HttpServer(const HttpLimits& limits, Guards guards, Handler handler);
  Status Listen(const std::string& address);
  void Accept();
  void Admit(boost::asio::ip::tcp::socket socket);
  // Closes the connection that gives way to a new one. Returns false if all run requests.
  bool CloseOne();
  // Accepts no more connections, and does `what` with those that are open, on the loop's thread.
  void StopListening(const std::function<void(HttpConnection*)>& what);

  HttpLoop loop_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_{
      boost::asio::make_work_guard(loop_.io)};
  boost::asio::ip::tcp::acceptor acceptor_{loop_.io};
  std::string address_;
  std::thread thread_;
};

}  // namespace polysketch
