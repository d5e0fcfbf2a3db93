// One connection of an HttpServer.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/http/http_loop.h"
#include "server/http/http_stream.h"
#include "server/http/request_head.h"
#include "server/http/server_exchange.h"

namespace polysketch {

// Used on the thread of the loop. Lives while an operation is outstanding.
class HttpConnection final : public ResponseWriter,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `spare`: above max_connections. `tls`: null without TLS.
  HttpConnection(HttpLoop* loop, boost::asio::ip::tcp::socket socket, SSL_CTX* tls, bool spare);
  ~HttpConnection() override {
    LeavePlace();
    loop_->connections.erase(this);
  }

  // Reads the first request, after the handshake of TLS.
  void Start();
  void Read(std::chrono::milliseconds timeout);
  void Flush(ServerExchange* exchange) override;
  // Closes the connection; reports to the exchange that the client has left.
  void Close();
  // Ends what no exchange has begun: refuses a request whose body still arrives with `why`, and
  // closes a connection that waits for one.
  void EndWait(const Status& why);

  const Principal& principal() const { return principal_; }
  bool runs_request() const { return exchange_ != nullptr; }
  bool reads_body() const { return reads_body_; }
  // When the server began to wait for the header, or the body, of a request.
  TimePoint waits_since() const { return waits_since_; }

 private:
  void ReadHead();
  // `bytes`: the size of the head in buffer_.
  void OnHead(size_t bytes);
  // Takes the head into request_. An error is of a request whose end is not known.
  Status TakeHead(size_t bytes);
  // Why a request is refused before its body is read.
  Status CheckRequest();
  void SendContinue();
  // Takes a place in HttpLoop::requests, until the response ends or the connection closes.
  Status TakePlace();
  void LeavePlace();
  void ReadBody();
  void OnBody(boost::system::error_code error);
  // Whether the body comes slower than HttpLimits allows.
  bool DripsBody() const;
  void Handle();
  // Ends a read that has failed: with an answer, if the client may still read one.
  void OnReadError(boost::system::error_code error);
  // Cancels the reads that have not ended after `timeout`.
  void LimitRead(std::chrono::milliseconds timeout);
  // Ends the reads of this request, which is refused with `why`.
  void Cut(const Status& why);
  void EndReads();
  // Answers. The connection remains open if all of the request was read.
  void Refuse(const Status& status, bool keep_alive = false);
  void RefusePlainHttp();
  void NewExchange(bool keep_alive);
  void WatchForLeave();
  void CheckLeave();
  void WriteSome();
  void EndOfResponse();
  void Linger();
  void LingerOnTcp();

  HttpLoop* const loop_;
  const std::string peer_;  // "ipv4:127.0.0.1:4711"
  const Principal principal_;
  const bool spare_;
  HttpStream stream_;
  boost::beast::flat_buffer buffer_;
  HeldMemory body_memory_;  // of the body that is read
  boost::asio::steady_timer gone_timer_;
  boost::asio::steady_timer read_timer_;
  Status cut_;  // why the server has ended the reads of this request; OK: it has not
  std::optional<RunningRequest> awaited_;  // from EndWait to the end of the connection
  TimePoint probe_at_;                     // of a client that sends no more; none: it may
  HeadScanner head_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  HttpRequest request_;                       // from its head until its exchange
  std::optional<Principal> place_;            // of a request in HttpLoop::requests
  std::shared_ptr<ServerExchange> exchange_;  // null between requests
  std::string writing_;
  size_t written_ = 0;
  bool busy_ = false;  // a write is outstanding
  size_t lingered_ = 0;
  bool reads_body_ = false;
  TimePoint waits_since_ = std::chrono::steady_clock::now();
};

}  // namespace polysketch
