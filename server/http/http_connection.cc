#include "server/http/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "server/convert/request_id.h"
#include "server/http/http_errors.h"
#include "server/http/request_path.h"

namespace polysketch {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Input that is read and dropped, so that a client which still sends a refused body reads the reply.
constexpr size_t kMaxLingerBytes = size_t{64} << 20;
constexpr std::chrono::milliseconds kLinger{2000};
// Bytes held for a byte of a body that is read: the text doubles its memory when it grows.
constexpr int64_t kHeldPerByte = 2;
// Times between the checks whether a client that has sent a second request has left.
constexpr std::chrono::milliseconds kGoneCheck{50};

tcp::endpoint Peer(const tcp::socket& socket) {
  error_code error;  // of a client that has left: no address
  return socket.remote_endpoint(error);
}

std::string PeerText(const tcp::endpoint& peer) {
  const std::string host = peer.address().to_string();
  return peer.address().is_v4() ? StrCat("ipv4:", host, ":", peer.port())
                                : StrCat("ipv6:[", host, "]:", peer.port());
}

}  // namespace

HttpConnection::HttpConnection(HttpLoop* loop, tcp::socket socket, SSL_CTX* tls, bool spare)
    : loop_(loop),
      peer_(Peer(socket)),
      spare_(spare),
      stream_(std::move(socket), tls),
      gone_timer_(loop->io) {
  buffer_.max_size(static_cast<size_t>(loop->limits.max_header_bytes) + (size_t{64} << 10));
  loop_->connections.insert(this);
}

void HttpConnection::Start() {
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

void HttpConnection::RefusePlainHttp() {
  static constexpr std::string_view kText =
      "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n"
      "expected TLS (https://), found HTTP without TLS\n";
  asio::async_write(stream_.tcp(), asio::buffer(kText),
                    [self = shared_from_this()](error_code error, size_t) {
                      error ? self->Close() : self->LingerOnTcp();
                    });
}

void HttpConnection::Read(std::chrono::milliseconds timeout) {
  reads_body_ = false;
  waits_since_ = std::chrono::steady_clock::now();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(loop_->limits.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(loop_->limits.max_body_bytes));
  stream_.tcp().expires_after(timeout);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnHeader(error); });
}

bool HttpConnection::RefuseBadInput(error_code error) {
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

void HttpConnection::OnHeader(error_code error) {
  if (!stream_.socket().is_open()) return;
  if (error && RefuseBadInput(error)) return;
  if (error) return Close();
  if (!TakeHeader()) return;
  reads_body_ = true;
  waits_since_ = std::chrono::steady_clock::now();
  body_memory_ = HeldMemory(loop_->guards.memory, RequestPhase::kMessage,
                            MemoryClient(request_.caller.get(), request_.peer));
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

void HttpConnection::ReadBody() {
  if (parser_->is_done()) return Handle();
  stream_.tcp().expires_after(loop_->limits.read_timeout);
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnBody(error); });
}

void HttpConnection::OnBody(error_code error) {
  if (!stream_.socket().is_open()) return;
  if (error && RefuseBadInput(error)) return;
  if (error) return Close();
  if (DripsBody()) {
    return Refuse(408,
                  StrCat("the body: expected at least ", loop_->limits.least_body_bytes_per_second,
                         " bytes a second, found fewer"));
  }
  const Status held = body_memory_.HoldOnly(kHeldPerByte * std::ssize(parser_->get().body()));
  held.ok() ? ReadBody() : RefuseRequest(held);
}

bool HttpConnection::DripsBody() const {
  const HttpLimits& limits = loop_->limits;
  const std::chrono::duration<double> late =
      std::chrono::steady_clock::now() - waits_since_ - limits.read_timeout;
  const auto bytes = static_cast<double>(parser_->get().body().size());
  return !parser_->is_done() &&
         bytes < late.count() * static_cast<double>(limits.least_body_bytes_per_second);
}

bool HttpConnection::TakeHeader() {
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

void HttpConnection::NewExchange(bool keep_alive) {
  const auto& message = parser_->get();
  stream_.tcp().expires_never();
  exchange_ = std::make_shared<ServerExchange>(
      loop_, shared_from_this(), std::exchange(request_, HttpRequest()),
      std::exchange(body_memory_, HeldMemory()),
      ServerExchange::Form{
          .head = message.method() == http::verb::head,
          .http_1_0 = message.version() < 11,
          .keep_alive = keep_alive && message.keep_alive() && !spare_ && !loop_->draining});
  WatchForLeave();
}

void HttpConnection::Handle() {
  body_memory_.SetPhase(RequestPhase::kRequest);
  request_.body = std::move(parser_->get().body());
  NewExchange(/*keep_alive=*/true);
  loop_->handler(exchange_);
}

void HttpConnection::RefuseRequest(const Status& status) {
  // Gives the memory back, which an assigned empty string keeps.
  std::string().swap(parser_->get().body());
  // A body that was not read would be taken for the next request.
  NewExchange(/*keep_alive=*/parser_->is_done());
  ReplyError(exchange_.get(), status);
}

void HttpConnection::Refuse(int status, const std::string& message) {
  exchange_ = std::make_shared<ServerExchange>(loop_, shared_from_this(), HttpRequest(),
                                               HeldMemory(), ServerExchange::Form{});
  exchange_->Reply(status, kJsonType, ErrorBody(status, message), {});
}

bool HttpConnection::HasLeft() {
  pollfd poll_fd{.fd = stream_.socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void HttpConnection::WatchForLeave() {
  stream_.socket().async_wait(tcp::socket::wait_read, [weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (!error && self != nullptr) self->CheckLeave();
  });
}

// The socket has input: the end of the connection, or a request that waits for its turn.
void HttpConnection::CheckLeave() {
  if (exchange_ == nullptr || !stream_.socket().is_open()) return;
  if (HasLeft()) return Close();
  gone_timer_.expires_after(kGoneCheck);
  gone_timer_.async_wait([weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (!error && self != nullptr) self->CheckLeave();
  });
}

void HttpConnection::Flush(ServerExchange* exchange) {
  if (exchange != exchange_.get() || busy_) return;
  WriteSome();
}

void HttpConnection::WriteSome() {
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
                             const std::shared_ptr<ServerExchange> exchange = self->exchange_;
                             if (exchange == nullptr) return;
                             exchange->OnSent(bytes);
                             if (self->exchange_ != nullptr) self->WriteSome();
                           });
}

void HttpConnection::EndOfResponse() {
  const std::shared_ptr<ServerExchange> exchange = std::exchange(exchange_, nullptr);
  exchange->Release();
  reads_body_ = false;
  waits_since_ = std::chrono::steady_clock::now();
  gone_timer_.cancel();
  error_code ignored;
  stream_.socket().cancel(ignored);
  if (!exchange->keep_alive() || loop_->draining) return Linger();
  // Not from here: a client that sends requests without an end must not deepen the stack.
  asio::post(loop_->io,
             [self = shared_from_this()] { self->Read(self->loop_->limits.keep_alive); });
}

void HttpConnection::Linger() {
  stream_.tcp().expires_after(kLinger);
  if (stream_.tls() == nullptr) return LingerOnTcp();
  // Tells the client that the response is complete, and waits for the same from the client. The
  // rest of a refused body is an error here.
  stream_.tls()->async_shutdown([self = shared_from_this()](error_code) {
    if (self->stream_.socket().is_open()) self->LingerOnTcp();
  });
}

void HttpConnection::LingerOnTcp() {
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

void HttpConnection::Close() {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  loop_->connections.erase(this);
  gone_timer_.cancel();
  stream_.tcp().close();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->OnGone();
}

}  // namespace polysketch
