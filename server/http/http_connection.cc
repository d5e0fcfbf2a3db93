// The parser of Beast 1.81 asserts, in builds with assertions, that no client sends the end of an
// empty body byte by byte. One may: it parses as any other.
#define BOOST_DISABLE_ASSERTS

#include "server/http/http_connection.h"
#include "base/memory_limit.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "server/convert/request_id.h"
#include "server/http/http_errors.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Input that is read and dropped, so that a client which still sends a refused body reads the
// reply.
constexpr size_t kMaxLingerBytes = size_t{64} << 20;
constexpr std::chrono::milliseconds kLinger{2000};
// Bytes held for a byte of a body that is read: the text doubles its memory when it grows.
constexpr int64_t kHeldPerByte = 2;
// More than one read brings.
constexpr size_t kGrowsBefore = size_t{256} << 10;
// Time between the checks whether a client that sends no more, or has sent a second request, has
// left.
constexpr std::chrono::milliseconds kGoneCheck{50};
// Time from the end of what a client sends to the first bytes that tell whether it has left.
constexpr std::chrono::milliseconds kFirstProbe{1000};
// Bytes of a read of a head.
constexpr size_t kReadBytes = 8 << 10;

// In gRPC's form.
std::string PeerOf(const tcp::socket& socket) {
  error_code error;  // of a client that has left: no address
  const tcp::endpoint peer = socket.remote_endpoint(error);
  const std::string host = peer.address().to_string();
  return peer.address().is_v4() ? StrCat("ipv4:", host, ":", peer.port())
                                : StrCat("ipv6:[", host, "]:", peer.port());
}

// A client that vanishes, or an older one that leaves and may get no 100 Continue, is noticed by
// TCP alone, in about a minute.
void SetKeepAlive(int fd) {
  const auto set = [fd](int level, int option, int value) {
    (void)setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// Beast takes any byte in a quoted value of an extension, so also the end of a line. Not const: a
// parser refers to it.
auto check_chunk = [](std::uint64_t, beast::string_view extensions, error_code& error) {
  if (std::ranges::any_of(extensions, IsControl)) error = http::error::bad_chunk_extension;
};

// Whether a request line ends with a version of HTTP that is not served.
bool NamesOtherVersion(std::string_view line) {
  const std::string_view version = line.substr(line.rfind(' ') + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return version.size() == 8 && version.starts_with("HTTP/") && is_digit(version[5]) &&
         version[6] == '.' && is_digit(version[7]) && version != "HTTP/1.0" &&
         version != "HTTP/1.1";
}

Status BodyTooLarge(const HttpLimits& limits) {
  return InvalidArgument("the body: expected at most ", limits.max_body_bytes, " bytes, found more")
      .WithReason(Reason::kBodyTooLarge);
}

}  // namespace

HttpConnection::HttpConnection(HttpLoop* loop, tcp::socket socket, SSL_CTX* tls, bool spare)
    : loop_(loop),
      peer_(PeerOf(socket)),
      principal_(PrincipalOf(nullptr, "", peer_)),
      spare_(spare),
      stream_(std::move(socket), tls),
      gone_timer_(loop->io),
      read_timer_(loop->io) {
  buffer_.max_size(static_cast<size_t>(loop->limits.max_header_bytes) + (size_t{64} << 10));
  loop_->connections.insert(this);
}

void HttpConnection::Start() {
  SetKeepAlive(stream_.socket().native_handle());
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
  asio::async_write(stream_.bytes(), asio::buffer(kText),
                    [self = shared_from_this()](error_code error, size_t) {
                      error ? self->Close() : self->LingerOnTcp();
                    });
}

void HttpConnection::Read(std::chrono::milliseconds timeout) {
  reads_body_ = false;
  cut_ = Status();
  waits_since_ = std::chrono::steady_clock::now();
  head_ = HeadScanner(loop_->limits.max_header_bytes);
  request_ = HttpRequest();
  request_.peer = peer_;
  request_.principal = principal_;
  parser_.emplace();
  parser_->on_chunk_header(check_chunk);
  stream_.tcp().expires_never();
  LimitRead(timeout);
  ReadHead();
}

void HttpConnection::LimitRead(std::chrono::milliseconds timeout) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (error || self == nullptr) return;
    if (std::chrono::steady_clock::now() < self->read_timer_.expiry()) return;  // EndReads
    self->Cut(InvalidArgument("expected the rest of the request, found none in time")
                  .WithReason(Reason::kRequestTimeout));
  });
}

void HttpConnection::Cut(const Status& why) {
  cut_ = why;
  error_code ignored;
  stream_.socket().cancel(ignored);
}

void HttpConnection::EndWait(const Status& why) {
  if (exchange_ != nullptr) return;
  if (!reads_body_) return Close();
  awaited_.emplace(loop_);
  Cut(why);
}

void HttpConnection::EndReads() {
  read_timer_.expires_at(std::chrono::steady_clock::time_point::max());
}

void HttpConnection::ReadHead() {
  // Older clients send an empty line after a body.
  const auto bytes = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  while (bytes().starts_with("\r\n")) buffer_.consume(2);
  const Result<size_t> found = head_.Find(bytes());
  if (!found.ok()) return Refuse(found.status());
  if (*found > 0) return OnHead(*found);
  stream_.ReadSome(buffer_.prepare(kReadBytes),
                   [self = shared_from_this()](error_code error, size_t size) {
                     if (!self->stream_.socket().is_open()) return;
                     self->buffer_.commit(size);
                     if (error || !self->cut_.ok()) return self->OnReadError(error);
                     self->ReadHead();
                   });
}

void HttpConnection::OnReadError(error_code error) {
  static const auto& parse_errors = make_error_code(http::error::bad_method).category();
  const bool whole = !reads_body_ && buffer_.size() == 0;  // between two requests
  const bool ended = error == asio::error::eof || error == http::error::end_of_stream ||
                     error == http::error::partial_message;
  if (whole && (ended || !cut_.ok())) return Close();
  if (!cut_.ok()) {
    Refuse(cut_);
  } else if (ended) {
    Refuse(MalformedRequest("expected the rest of the request, found the end of the connection"));
  } else if (error == http::error::body_limit) {
    Refuse(BodyTooLarge(loop_->limits));
  } else if (error == http::error::buffer_overflow) {
    Refuse(HeaderTooLarge(loop_->limits.max_header_bytes));
  } else if (error.category() == parse_errors) {
    Refuse(MalformedRequest(
        StrCat("expected an HTTP/1.1 request, found bytes that do not parse: ", error.message())));
  } else {
    Close();  // the client has left
  }
}

void HttpConnection::OnHead(size_t bytes) {
  EndReads();
  if (const Status status = TakeHead(bytes); !status.ok()) return Refuse(status);
  // A body that was not read would be taken for the next request.
  if (const Status status = CheckRequest(); !status.ok())
    return Refuse(status, /*keep_alive=*/parser_->is_done());
  reads_body_ = true;
  waits_since_ = std::chrono::steady_clock::now();
  body_memory_ = HeldMemory(loop_->guards.memory, RequestPhase::kMessage, request_.principal);
  const bool waits = !request_.Header("Expect").empty() && !parser_->is_done() &&
                     buffer_.size() == 0 && parser_->get().version() >= 11;
  waits ? SendContinue() : ReadBody();
}

Status HttpConnection::TakeHead(size_t bytes) {
  error_code error;
  // The limits are checked with what the request says of itself.
  parser_->header_limit(static_cast<uint32_t>(bytes + 1));
  parser_->body_limit(boost::none);
  const std::string_view text(static_cast<const char*>(buffer_.data().data()), bytes);
  const bool other_version = NamesOtherVersion(text.substr(0, text.find('\r')));
  parser_->put(asio::buffer(text), error);
  buffer_.consume(bytes);
  const auto& head = parser_->get();
  request_.method = std::string(head.method_string());
  for (const auto& field : head)
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  if (other_version) {
    return InvalidArgument("the request line: expected HTTP/1.1 or HTTP/1.0")
        .WithReason(Reason::kHttpVersion);
  }
  if (error || !parser_->is_header_done()) {
    return MalformedRequest(
        StrCat("expected an HTTP/1.1 request, found bytes that do not parse: ", error.message()));
  }
  PS_RETURN_IF_ERROR(CheckFraming(head, loop_->limits.max_header_fields));
  PS_ASSIGN_OR_RETURN(RequestTarget target,
                      ParseTarget(request_.method, std::string_view(head.target())));
  request_.path = std::move(target.path);
  request_.query = std::move(target.query);
  if (target.authority.has_value()) request_.SetHeader("Host", *target.authority);
  parser_->body_limit(static_cast<uint64_t>(loop_->limits.max_body_bytes));
  return Status();
}

Status HttpConnection::CheckRequest() {
  if (loop_->guards.check) PS_RETURN_IF_ERROR(loop_->guards.check(&request_));
  request_.principal =
      PrincipalOf(request_.caller.get(), request_.Header("x-tenant-id"), request_.peer);
  const std::string_view expect = request_.Header("Expect");
  if (!expect.empty() && !EqualsIgnoringCase(expect, "100-continue")) {
    return InvalidArgument("Expect: expected 100-continue, found \"", expect, "\"")
        .WithReason(Reason::kExpectationFailed);
  }
  for (const std::string_view encoding : request_.Headers("Content-Encoding")) {
    if (encoding.empty() || EqualsIgnoringCase(encoding, "identity")) continue;
    return InvalidArgument("Content-Encoding: expected none, found \"", encoding, "\"")
        .WithReason(Reason::kUnsupportedEncoding);
  }
  const auto length = ContentLength(parser_->get());
  const bool fits = length.value_or(0) <= static_cast<uint64_t>(loop_->limits.max_body_bytes);
  if (!fits) return BodyTooLarge(loop_->limits);
  const bool probe = loop_->guards.is_probe && loop_->guards.is_probe(request_.path);
  return probe ? Status() : TakePlace();
}

void HttpConnection::SendContinue() {
  static constexpr std::string_view kText = "HTTP/1.1 100 Continue\r\n\r\n";
  stream_.tcp().expires_after(loop_->limits.write_timeout);
  asio::async_write(stream_, asio::buffer(kText),
                    [self = shared_from_this()](error_code error, size_t) {
                      self->stream_.tcp().expires_never();
                      error && self->cut_.ok() ? self->Close() : self->ReadBody();
                    });
}

void HttpConnection::ReadBody() {
  if (parser_->is_done()) return Handle();
  if (!cut_.ok()) return Refuse(cut_);
  LimitRead(loop_->limits.read_timeout);
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnBody(error); });
}

void HttpConnection::OnBody(error_code error) {
  if (!stream_.socket().is_open()) return;
  if (error) return OnReadError(error);
  if (DripsBody()) {
    return Refuse(InvalidArgument("the body: expected at least ",
                                  loop_->limits.least_body_bytes_per_second,
                                  " bytes a second, found fewer")
                      .WithReason(Reason::kRequestTimeout));
  }
  const std::string& body = parser_->get().body();
  Status held = body_memory_.HoldOnly(kHeldPerByte * std::ssize(body));
  // What is held grows by each read; the text takes twice its memory at once.
  const bool grows = body.capacity() - body.size() < kGrowsBefore;
  if (held.ok() && grows && !MemoryFits(2 * body.capacity()) && body_memory_.budget() != nullptr)
    held = body_memory_.budget()->Refusal(2 * std::ssize(body));
  held.ok() ? ReadBody() : Refuse(held, /*keep_alive=*/parser_->is_done());
}

bool HttpConnection::DripsBody() const {
  const HttpLimits& limits = loop_->limits;
  const std::chrono::duration<double> late =
      std::chrono::steady_clock::now() - waits_since_ - limits.read_timeout;
  const auto bytes = static_cast<double>(parser_->get().body().size());
  return !parser_->is_done() &&
         bytes < late.count() * static_cast<double>(limits.least_body_bytes_per_second);
}

Status HttpConnection::TakePlace() {
  Shares& requests = loop_->requests;
  const int64_t free = loop_->max_requests() - requests.total();
  if (!requests.Fits(request_.principal, 1, free, /*first=*/true)) {
    return Unavailable("too many HTTP requests at once: this client runs ",
                       requests.Of(request_.principal).principal, "; try again later")
        .WithReason(Reason::kTooManyConnections);
  }
  place_ = request_.principal;
  requests.Add(*place_, 1);
  return Status();
}

void HttpConnection::LeavePlace() {
  if (place_.has_value()) loop_->requests.Remove(*place_, 1);
  place_.reset();
}

void HttpConnection::NewExchange(bool keep_alive) {
  const auto& message = parser_->get();
  EndReads();
  if (!IsRequestId(request_.Header(kRequestIdHeader)))
    request_.SetHeader(kRequestIdHeader, NewRequestId());
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

void HttpConnection::Refuse(const Status& status, bool keep_alive) {
  // Gives the memory back, which an assigned empty string keeps.
  std::string().swap(parser_->get().body());
  NewExchange(keep_alive);
  ReplyError(exchange_.get(), status);
}

void HttpConnection::WatchForLeave() {
  probe_at_ = {};
  stream_.socket().async_wait(tcp::socket::wait_read, [weak = weak_from_this()](error_code error) {
    const auto self = weak.lock();
    if (!error && self != nullptr) self->CheckLeave();
  });
}

// The socket has input: a request that waits for its turn, or the end of what the client sends. A
// client that has closed one direction of the connection waits for its answer, one that has closed
// both has left; only bytes that are sent to it tell which, because it refuses them in the second
// case.
void HttpConnection::CheckLeave() {
  if (exchange_ == nullptr || !stream_.socket().is_open()) return;
  pollfd poll_fd{.fd = stream_.socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  poll(&poll_fd, 1, 0);
  if ((poll_fd.revents & (POLLHUP | POLLERR)) != 0) return Close();
  if ((poll_fd.revents & POLLRDHUP) != 0) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (probe_at_ == TimePoint()) probe_at_ = now + kFirstProbe;
    if (now >= probe_at_) {
      probe_at_ = now + loop_->limits.silence;
      exchange_->Probe();
    }
  }
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
  stream_.WriteSome(asio::buffer(writing_.data() + written_, writing_.size() - written_),
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
  LeavePlace();
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
  stream_.bytes().ReadSome(buffer_.prepare(size_t{16} << 10),
                           [self = shared_from_this()](error_code error, size_t bytes) {
                             self->lingered_ += bytes;
                             if (error || self->lingered_ > kMaxLingerBytes) return self->Close();
                             self->LingerOnTcp();
                           });
}

void HttpConnection::Close() {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  loop_->connections.erase(this);
  gone_timer_.cancel();
  read_timer_.cancel();
  stream_.tcp().close();
  awaited_.reset();
  LeavePlace();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->OnGone();
}

}  // namespace polysketch
