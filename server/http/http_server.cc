#include "server/http/http_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <unordered_set>

#include "base/logging.h"
#include "server/convert/request_id.h"
#include "server/http/http_errors.h"
#include "server/http/http_stream.h"

namespace polysketch {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

// Input that is read and dropped, so that a client which still sends a refused body reads the reply.
constexpr size_t kMaxLingerBytes = size_t{64} << 20;
constexpr std::chrono::milliseconds kLinger{2000};
// Bytes held for a byte of a body that is read: the text doubles its memory when it grows.
constexpr int64_t kHeldPerByte = 2;
// Times between the checks whether a client that has sent a second request has left.
constexpr std::chrono::milliseconds kGoneCheck{50};
// Responses above this count as request memory. Others are bounded by --max-connections.
constexpr size_t kCountedReplyBytes = 128 << 10;

// Responses are not cached; the page loads nothing from other origins, and no page may frame it.
constexpr char kCommonHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n";

tcp::endpoint Peer(const tcp::socket& socket) {
  error_code error;  // of a client that has left: no address
  return socket.remote_endpoint(error);
}

std::string PeerText(const tcp::endpoint& peer) {
  const std::string host = peer.address().to_string();
  return peer.address().is_v4() ? StrCat("ipv4:", host, ":", peer.port())
                                : StrCat("ipv6:[", host, "]:", peer.port());
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The path of a request target, with "%2F" decoded. nullopt for a broken escape.
std::optional<std::string> DecodedPath(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path.push_back(target[i]);
      continue;
    }
    if (i + 2 >= target.size()) return std::nullopt;
    const int high = HexDigit(target[i + 1]), low = HexDigit(target[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    path.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return path;
}

class Exchange;

struct Loop {
  asio::io_context io{1};
  HttpLimits limits;
  HttpServer::Guards guards;
  HttpServer::Handler handler;
  std::unordered_set<class Connection*> connections;
  bool draining = false;
  std::atomic<int64_t> running{0};
};

// One connection. Used on the thread of the loop. Lives while an operation is outstanding.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `spare`: one of kProbeConnections.
  Connection(Loop* loop, tcp::socket socket, SSL_CTX* tls, bool spare)
      : loop_(loop),
        peer_(Peer(socket)),
        spare_(spare),
        stream_(std::move(socket), tls),
        body_memory_(loop->guards.memory, RequestPhase::kMessage),
        gone_timer_(loop->io) {
    buffer_.max_size(static_cast<size_t>(loop->limits.max_header_bytes) + (size_t{64} << 10));
    loop_->connections.insert(this);
  }
  ~Connection() { loop_->connections.erase(this); }

  // Reads the first request, after the handshake of TLS.
  void Start();
  void Read(std::chrono::milliseconds timeout);
  // Writes what the exchange has for the socket. Does nothing for an exchange of the past.
  void Flush(Exchange* exchange);
  // Closes the connection; reports to the exchange that the client has left.
  void Close();
  void CloseIfIdle() {
    if (exchange_ == nullptr) Close();
  }

  asio::ip::address peer() const { return peer_.address(); }
  bool runs_request() const { return exchange_ != nullptr; }
  bool reads_body() const { return reads_body_; }
  // When the server began to wait for the header, or the body, of a request.
  Clock::time_point waits_since() const { return waits_since_; }

 private:
  void OnHeader(error_code error);
  // Takes the header into request_. Returns false if the request is refused.
  bool TakeHeader();
  void ReadBody();
  void OnBody(error_code error);
  void Handle();
  // Refuses what is not HTTP, or too large. Returns false for an error of the connection.
  bool RefuseBadInput(error_code error);
  // Each answers; Refuse closes the connection.
  void Refuse(int status, const std::string& message);
  void RefuseRequest(const Status& status);
  void RefusePlainHttp();
  void NewExchange(bool keep_alive);
  void WatchForLeave();
  void CheckLeave();
  bool HasLeft();
  void WriteSome();
  void EndOfResponse();
  void Linger();
  void LingerOnTcp();

  Loop* const loop_;
  const tcp::endpoint peer_;
  const bool spare_;
  HttpStream stream_;
  beast::flat_buffer buffer_;
  HeldMemory body_memory_;  // of the body that is read
  asio::steady_timer gone_timer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;                 // from its header until its exchange
  std::shared_ptr<Exchange> exchange_;  // null between requests
  std::string writing_;
  size_t written_ = 0;
  bool busy_ = false;  // a write is outstanding
  size_t lingered_ = 0;
  bool reads_body_ = false;
  Clock::time_point waits_since_ = Clock::now();
};

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  // `body_memory` holds the body.
  Exchange(Loop* loop, std::shared_ptr<Connection> connection, HttpRequest request,
           HeldMemory body_memory, bool head, bool http_1_0, bool keep_alive)
      : body_memory_(std::move(body_memory)),
        reply_memory_(loop->guards.memory, RequestPhase::kReply),
        loop_(loop),
        work_(asio::make_work_guard(loop->io)),
        request_(std::move(request)),
        head_(head),
        http_1_0_(http_1_0),
        connection_(std::move(connection)),
        keep_alive_(keep_alive && !http_1_0) {
    loop_->running.fetch_add(1);
  }
  ~Exchange() override { loop_->running.fetch_sub(1); }

  const HttpRequest& request() const override { return request_; }

  void Reply(int status, std::string_view content_type, std::string body,
             HttpHeaders headers) override {
    if (body.size() > kCountedReplyBytes) {
      const Status held = reply_memory_.HoldOnly(std::ssize(body));
      if (!held.ok()) {
        body = {};
        return ReplyError(this, held);
      }
    }
    headers.emplace_back("Content-Length", std::to_string(body.size()));
    std::string response = Head(status, content_type, headers);
    if (!head_) response += body;
    Append(std::move(response), true);
  }
  void StartStream(std::string_view content_type, HttpHeaders headers) override {
    if (!http_1_0_) headers.emplace_back("Transfer-Encoding", "chunked");
    Append(Head(200, content_type, headers), false);
  }
  void Send(std::string piece) override {
    if (piece.empty() || head_) return;  // an empty chunk would end the stream
    if (http_1_0_) return Append(std::move(piece), false);
    char size[20];
    const auto end = std::to_chars(size, size + sizeof(size), piece.size(), 16).ptr;
    std::string chunk(size, end);
    chunk += "\r\n";
    chunk += piece;
    chunk += "\r\n";
    Append(std::move(chunk), false);
  }
  void EndStream() override { Append(http_1_0_ || head_ ? "" : "0\r\n\r\n", true); }

  size_t unsent_bytes() const override { return unsent_.load(); }
  void SetCallbacks(Work on_sent, Work on_gone) override {
    Post([self = shared_from_this(), on_sent = std::move(on_sent),
          on_gone = std::move(on_gone)]() mutable {
      if (self->gone_) return on_gone();
      if (self->connection_ == nullptr) return;  // the response is complete
      self->on_sent_ = std::move(on_sent);
      self->on_gone_ = std::move(on_gone);
    });
  }
  void Post(Work work) override { asio::post(loop_->io, std::move(work)); }
  RequestMemory* memory() const override { return loop_->guards.memory; }

  // --- for the connection, on the thread of the loop ---
  // Moves what is to be written to *out. Returns whether that is the end of the response.
  bool Take(std::string* out) {
    std::lock_guard lock(mutex_);
    posted_ = false;
    out->swap(pending_);
    return ended_;
  }
  void OnSent(size_t bytes) {
    unsent_.fetch_sub(bytes);
    if (on_sent_) on_sent_();
  }
  void OnGone() {
    gone_ = true;
    const Work on_gone = std::move(on_gone_);
    Release();
    if (on_gone) on_gone();
  }
  // The response is complete, or its client has left.
  void Release() {
    connection_.reset();
    on_sent_ = nullptr;
    on_gone_ = nullptr;
  }
  bool keep_alive() const { return keep_alive_; }
  void CloseAfterwards() { keep_alive_ = false; }

 private:
  std::string Head(int status, std::string_view content_type, const HttpHeaders& headers) const {
    std::string head = StrCat("HTTP/1.1 ", status, " ",
                              std::string_view(http::obsolete_reason(http::int_to_status(status))),
                              "\r\nContent-Type: ", content_type, "\r\n", kCommonHeaders);
    for (const auto& [name, value] : headers) head += StrCat(name, ": ", value, "\r\n");
    if (const std::string_view id = request_.Header(kRequestIdHeader); !id.empty())
      head += StrCat(kRequestIdHeader, ": ", id, "\r\n");
    if (!request_.allowed_origin.empty()) {
      head += StrCat("Access-Control-Allow-Origin: ", request_.allowed_origin,
                     "\r\nAccess-Control-Expose-Headers: *\r\nVary: Origin\r\n");
    }
    if (!keep_alive_.load()) head += "Connection: close\r\n";
    return head += "\r\n";
  }
  void Append(std::string bytes, bool end) {
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      unsent_.fetch_add(bytes.size());
      pending_ += bytes;
      ended_ = end;
      if (std::exchange(posted_, true)) return;
    }
    Post([self = shared_from_this()] {
      if (const auto connection = self->connection_) connection->Flush(self.get());
    });
  }

  HeldMemory body_memory_;
  HeldMemory reply_memory_;
  Loop* const loop_;
  const asio::executor_work_guard<asio::io_context::executor_type> work_;  // the loop outlives this
  const HttpRequest request_;
  const bool head_;
  const bool http_1_0_;
  std::atomic<size_t> unsent_{0};
  std::mutex mutex_;
  // Guarded by mutex_:
  std::string pending_;
  bool ended_ = false;
  bool posted_ = false;  // Flush will run
  // Used on the thread of the loop:
  std::shared_ptr<Connection> connection_;  // null at the end
  Work on_sent_, on_gone_;
  bool gone_ = false;
  std::atomic<bool> keep_alive_;
};

void Connection::Start() {
  const std::chrono::milliseconds timeout = loop_->limits.read_timeout;
  if (stream_.tls() == nullptr) return Read(timeout);
  stream_.tcp().expires_after(timeout);
  stream_.tls()->async_handshake(asio::ssl::stream_base::server,
                                 [self = shared_from_this(), timeout](error_code error) {
                                   if (!self->stream_.socket().is_open()) return;
                                   if (!error) return self->Read(timeout);
                                   if (IsPlainHttp(error)) return self->RefusePlainHttp();
                                   self->Close();
                                 });
}

void Connection::RefusePlainHttp() {
  static constexpr std::string_view kText =
      "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n"
      "expected TLS (https://), found HTTP without TLS\n";
  asio::async_write(stream_.tcp(), asio::buffer(kText),
                    [self = shared_from_this()](error_code error, size_t) {
                      error ? self->Close() : self->LingerOnTcp();
                    });
}

void Connection::Read(std::chrono::milliseconds timeout) {
  reads_body_ = false;
  waits_since_ = Clock::now();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(loop_->limits.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(loop_->limits.max_body_bytes));
  stream_.tcp().expires_after(timeout);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnHeader(error); });
}

bool Connection::RefuseBadInput(error_code error) {
  static const auto& parse_errors = make_error_code(http::error::bad_method).category();
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    Refuse(431, StrCat("the header: expected at most ", loop_->limits.max_header_bytes,
                       " bytes, found more"));
  } else if (error == http::error::body_limit) {
    Refuse(413, StrCat("the body: expected at most ", loop_->limits.max_body_bytes,
                       " bytes, found more"));
  } else if (error.category() == parse_errors && error != http::error::end_of_stream &&
             error != http::error::partial_message) {
    Refuse(400, StrCat("expected an HTTP/1.1 request, found bytes that do not parse: ",
                       error.message()));
  } else {
    return false;  // the client has left
  }
  return true;
}

void Connection::OnHeader(error_code error) {
  if (!stream_.socket().is_open()) return;
  if (error && RefuseBadInput(error)) return;
  if (error) return Close();
  if (!TakeHeader()) return;
  reads_body_ = true;
  waits_since_ = Clock::now();
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    auto text = std::make_shared<std::string>("HTTP/1.1 100 Continue\r\n\r\n");
    stream_.tcp().expires_after(loop_->limits.write_timeout);
    return asio::async_write(stream_, asio::buffer(*text),
                             [self = shared_from_this(), text](error_code failed, size_t) {
                               failed ? self->Close() : self->ReadBody();
                             });
  }
  ReadBody();
}

void Connection::ReadBody() {
  if (parser_->is_done()) return Handle();
  stream_.tcp().expires_after(loop_->limits.read_timeout);
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnBody(error); });
}

void Connection::OnBody(error_code error) {
  if (!stream_.socket().is_open()) return;
  if (error && RefuseBadInput(error)) return;
  if (error) return Close();
  const Status held = body_memory_.HoldOnly(kHeldPerByte * std::ssize(parser_->get().body()));
  held.ok() ? ReadBody() : RefuseRequest(held);
}

bool Connection::TakeHeader() {
  const auto& message = parser_->get();
  request_ = HttpRequest();
  const std::optional<std::string> path = DecodedPath(std::string_view(message.target()));
  if (!path.has_value()) {
    Refuse(400, "the path: expected two hexadecimal digits after %");
    return false;
  }
  request_.method = std::string(message.method_string());
  request_.path = *path;
  request_.peer = PeerText(peer_);
  for (const auto& field : message)
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  if (!IsRequestId(request_.Header(kRequestIdHeader))) {
    std::erase_if(request_.headers, [](const auto& header) {
      return EqualsIgnoringCase(header.first, kRequestIdHeader);
    });
    request_.headers.emplace_back(kRequestIdHeader, NewRequestId());
  }
  if (spare_ && (!loop_->guards.is_probe || !loop_->guards.is_probe(request_.path))) {
    RefuseRequest(Unavailable("too many connections run requests; try again later"));
    return false;
  }
  if (!loop_->guards.check) return true;
  const Status status = loop_->guards.check(&request_);
  if (!status.ok()) RefuseRequest(status);
  return status.ok();
}

void Connection::NewExchange(bool keep_alive) {
  const auto& message = parser_->get();
  RequestMemory* const memory = loop_->guards.memory;
  stream_.tcp().expires_never();
  exchange_ = std::make_shared<Exchange>(
      loop_, shared_from_this(), std::exchange(request_, HttpRequest()),
      std::exchange(body_memory_, HeldMemory(memory, RequestPhase::kMessage)),
      message.method() == http::verb::head, message.version() < 11,
      keep_alive && message.keep_alive() && !spare_ && !loop_->draining);
  WatchForLeave();
}

void Connection::Handle() {
  body_memory_.SetPhase(RequestPhase::kRequest);
  request_.body = std::move(parser_->get().body());
  NewExchange(/*keep_alive=*/true);
  loop_->handler(exchange_);
}

void Connection::RefuseRequest(const Status& status) {
  // A body that was not read would be taken for the next request.
  parser_->get().body() = std::string();
  NewExchange(/*keep_alive=*/parser_->is_done());
  ReplyError(exchange_.get(), status);
}

void Connection::Refuse(int status, const std::string& message) {
  exchange_ = std::make_shared<Exchange>(loop_, shared_from_this(), HttpRequest(), HeldMemory(),
                                         false, false, /*keep_alive=*/false);
  exchange_->Reply(status, kJsonType, ErrorBody(status, message), {});
}

bool Connection::HasLeft() {
  pollfd poll_fd{.fd = stream_.socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Connection::WatchForLeave() {
  stream_.socket().async_wait(tcp::socket::wait_read, [weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (!error && self != nullptr) self->CheckLeave();
  });
}

// The socket has input: the end of the connection, or a request that waits for its turn.
void Connection::CheckLeave() {
  if (exchange_ == nullptr || !stream_.socket().is_open()) return;
  if (HasLeft()) return Close();
  gone_timer_.expires_after(kGoneCheck);
  gone_timer_.async_wait([weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (!error && self != nullptr) self->CheckLeave();
  });
}

void Connection::Flush(Exchange* exchange) {
  if (exchange != exchange_.get() || busy_) return;
  WriteSome();
}

void Connection::WriteSome() {
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    const bool end = exchange_->Take(&writing_);
    if (writing_.empty()) {
      busy_ = false;
      if (end) EndOfResponse();
      return;
    }
  }
  busy_ = true;
  stream_.tcp().expires_after(loop_->limits.write_timeout);
  stream_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](error_code error, size_t bytes) {
                             if (error || !self->stream_.socket().is_open()) return self->Close();
                             self->written_ += bytes;
                             self->stream_.tcp().expires_never();
                             const std::shared_ptr<Exchange> exchange = self->exchange_;
                             if (exchange == nullptr) return;
                             exchange->OnSent(bytes);
                             if (self->exchange_ != nullptr) self->WriteSome();
                           });
}

void Connection::EndOfResponse() {
  const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
  exchange->Release();
  reads_body_ = false;
  waits_since_ = Clock::now();
  gone_timer_.cancel();
  error_code ignored;
  stream_.socket().cancel(ignored);
  if (!exchange->keep_alive() || loop_->draining) return Linger();
  // Not from here: a client that sends requests without an end must not deepen the stack.
  asio::post(loop_->io,
             [self = shared_from_this()] { self->Read(self->loop_->limits.keep_alive); });
}

void Connection::Linger() {
  stream_.tcp().expires_after(kLinger);
  if (stream_.tls() == nullptr) return LingerOnTcp();
  // Tells the client that the response is complete, and waits for the same from the client. The
  // rest of a refused body is an error here.
  stream_.tls()->async_shutdown([self = shared_from_this()](error_code) {
    if (self->stream_.socket().is_open()) self->LingerOnTcp();
  });
}

void Connection::LingerOnTcp() {
  error_code ignored;
  if (lingered_ == 0) stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.clear();
  stream_.tcp().async_read_some(buffer_.prepare(size_t{16} << 10),
                                [self = shared_from_this()](error_code error, size_t bytes) {
                                  self->lingered_ += bytes;
                                  if (error || self->lingered_ > kMaxLingerBytes)
                                    return self->Close();
                                  self->LingerOnTcp();
                                });
}

void Connection::Close() {
  const std::shared_ptr<Connection> self = shared_from_this();
  loop_->connections.erase(this);
  gone_timer_.cancel();
  stream_.tcp().close();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->OnGone();
}

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpLimits& limits, Guards guards, Handler handler) : acceptor_(loop_.io) {
    loop_.limits = limits;
    loop_.guards = std::move(guards);
    loop_.handler = std::move(handler);
  }
  ~BeastServer() override {
    asio::post(loop_.io, [this] {
      StopListening();
      ForEachConnection([](Connection* connection) { connection->Close(); });
    });
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }

  Status Listen(const std::string& address);
  const std::string& address() const override { return address_; }
  void Drain() override {
    asio::post(loop_.io, [this] {
      StopListening();
      ForEachConnection([](Connection* connection) { connection->CloseIfIdle(); });
    });
  }
  int64_t running() const override { return loop_.running.load(); }

 private:
  void Accept();
  void Admit(tcp::socket socket);
  // Closes the connection that gives way to a new one. Returns false if all run requests.
  bool CloseOne();
  void StopListening() {
    loop_.draining = true;
    error_code ignored;
    acceptor_.close(ignored);
  }
  template <typename F>
  void ForEachConnection(F f) {
    std::vector<std::shared_ptr<Connection>> all;
    for (Connection* connection : loop_.connections) {
      if (auto shared = connection->weak_from_this().lock()) all.push_back(std::move(shared));
    }
    for (const auto& connection : all) f(connection.get());
  }

  Loop loop_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{
      asio::make_work_guard(loop_.io)};
  tcp::acceptor acceptor_;
  std::string address_;
  std::thread thread_;
};

Status BeastServer::Listen(const std::string& address) {
  const Status malformed = InvalidArgument(
      "expected HOST:PORT with a numeric host or localhost, found \"", address, "\"");
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return malformed;
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const char* const end = address.data() + address.size();
  const auto [stop, failed] = std::from_chars(address.data() + colon + 1, end, port);
  error_code error;
  if (host == "localhost") host = "127.0.0.1";
  const asio::ip::address ip = asio::ip::make_address(host, error);
  if (error || failed != std::errc() || stop != end) return malformed;
  const tcp::endpoint endpoint(ip, port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(1024, error);
  if (error) return Unavailable("cannot listen on ", address, ": ", error.message());
  address_ = StrCat(address.substr(0, colon), ":", acceptor_.local_endpoint().port());
  Accept();
  thread_ = std::thread([this] { loop_.io.run(); });
  return Status();
}

void BeastServer::Accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {  // no file descriptor is free, or the client has left
      auto timer = std::make_shared<asio::steady_timer>(loop_.io, kGoneCheck);
      return timer->async_wait([this, timer](error_code) {
        if (acceptor_.is_open()) Accept();
      });
    }
    Admit(std::move(socket));
    Accept();
  });
}

void BeastServer::Admit(tcp::socket socket) {
  const auto open = static_cast<int64_t>(loop_.connections.size());
  const int64_t max = loop_.limits.max_connections;
  const int64_t above = open + 1 - max;  // with the new one
  const int64_t idle =
      std::count_if(loop_.connections.begin(), loop_.connections.end(),
                    [](const Connection* connection) { return !connection->runs_request(); });
  const bool spare = above > idle;
  const bool full = open >= max + kProbeConnections;
  for (int64_t left = spare ? int64_t{full} : above; left > 0; --left) {
    if (!CloseOne()) return;
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  const CertificateStore* const store = loop_.guards.certificates;
  const auto certificates = store == nullptr ? nullptr : store->current();
  SSL_CTX* const tls = certificates == nullptr ? nullptr : certificates->context.get();
  std::make_shared<Connection>(&loop_, std::move(socket), tls, spare)->Start();
}

bool BeastServer::CloseOne() {
  std::map<asio::ip::address, int64_t> of_peer;
  for (const Connection* connection : loop_.connections) ++of_peer[connection->peer()];
  const auto rank = [&](const Connection& connection) {
    return std::tuple(-of_peer.at(connection.peer()), connection.reads_body(),
                      connection.waits_since());
  };
  Connection* first = nullptr;
  for (Connection* connection : loop_.connections) {
    if (connection->runs_request()) continue;
    if (first == nullptr || rank(*connection) < rank(*first)) first = connection;
  }
  const auto closed = first == nullptr ? nullptr : first->weak_from_this().lock();
  if (closed == nullptr) return false;
  closed->Close();
  return true;
}

}  // namespace

bool EqualsIgnoringCase(std::string_view a, std::string_view b) { return beast::iequals(a, b); }

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoringCase(key, name)) return value;
  }
  return {};
}

std::vector<std::string_view> HttpRequest::Headers(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoringCase(key, name)) values.emplace_back(value);
  }
  return values;
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                      const HttpLimits& limits, Guards guards,
                                                      Handler handler) {
  auto server = std::make_unique<BeastServer>(limits, std::move(guards), std::move(handler));
  PS_RETURN_IF_ERROR(server->Listen(address));
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace polysketch
