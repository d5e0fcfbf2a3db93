#include "server/http/server_exchange.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <iterator>
#include <utility>

#include "server/http/http_errors.h"

namespace polysketch {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// Responses above this count as request memory. Others are bounded by --max-connections.
constexpr size_t kCountedReplyBytes = 128 << 10;

// Responses are not cached; the page loads nothing from other origins, and no page may frame it.
constexpr char kCommonHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n";

}  // namespace

ServerExchange::ServerExchange(HttpLoop* loop, std::shared_ptr<ResponseWriter> writer,
                               HttpRequest request, HeldMemory body_memory, Form form)
    : body_memory_(std::move(body_memory)),
      loop_(loop),
      running_(loop),
      work_(asio::make_work_guard(loop->io)),
      request_(std::move(request)),
      reply_memory_(NewMemory(RequestPhase::kReply)),
      head_(form.head),
      http_1_0_(form.http_1_0),
      keep_alive_(form.keep_alive && !form.http_1_0),
      writer_(std::move(writer)),
      silence_timer_(loop->io) {}

void ServerExchange::Reply(int status, std::string_view content_type, std::string body,
                           HttpHeaders headers) {
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
  Append(response, true);
}

void ServerExchange::StartStream(std::string_view content_type, std::string comment) {
  HttpHeaders headers = {{"X-Accel-Buffering", "no"}};  // proxies pass each piece on at once
  if (!http_1_0_) headers.emplace_back("Transfer-Encoding", "chunked");
  Append(Head(200, content_type, headers), false, std::move(comment));
  Post([self = shared_from_this()] {
    self->last_sent_ = std::chrono::steady_clock::now();
    self->WatchForSilence();
  });
}

void ServerExchange::WatchForSilence() {
  if (writer_ == nullptr) return;
  silence_timer_.expires_at(last_sent_ + loop_->limits.silence);
  silence_timer_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const auto self = weak.lock();
    if (error || self == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    if (now >= self->last_sent_ + self->loop_->limits.silence) {
      self->Probe();
      self->last_sent_ = now;
    }
    self->WatchForSilence();
  });
}

void ServerExchange::Probe() {
  if (unsent_bytes() > 0) return;
  bool posts = false;
  {
    std::lock_guard lock(mutex_);
    if (!comment_.empty()) {
      posts = Add(Chunk(comment_), false);
    } else if (!http_1_0_) {
      posts = Add("HTTP/1.1 100 Continue\r\n\r\n", false);
    }
  }
  if (posts) PostFlush();
}

std::string ServerExchange::Chunk(std::string_view piece) const {
  if (http_1_0_) return std::string(piece);
  char size[20];
  const auto end = std::to_chars(size, size + sizeof(size), piece.size(), 16).ptr;
  std::string chunk(size, end);
  chunk += "\r\n";
  chunk += piece;
  chunk += "\r\n";
  return chunk;
}

void ServerExchange::Send(std::string piece) {
  if (piece.empty() || head_) return;  // an empty chunk would end the stream
  Append(Chunk(piece), false);
}

void ServerExchange::EndStream() { Append(http_1_0_ || head_ ? "" : "0\r\n\r\n", true); }

void ServerExchange::SetCallbacks(std::function<void()> on_sent, std::function<void()> on_gone) {
  Post([self = shared_from_this(), on_sent = std::move(on_sent),
        on_gone = std::move(on_gone)]() mutable {
    if (self->gone_) return on_gone();
    if (self->writer_ == nullptr) return;  // the response is complete
    self->on_sent_ = std::move(on_sent);
    self->on_gone_ = std::move(on_gone);
  });
}

void ServerExchange::Post(std::function<void()> work) { asio::post(loop_->io, std::move(work)); }

void ServerExchange::OnRefused(const Status& status) {
  if (loop_->guards.refusals == nullptr || call_failed_.load()) return;
  const bool read = !request_.path.empty();  // it is a request of HTTP
  const std::string method = read ? StrCat(request_.method, " ", request_.path) : "";
  loop_->guards.refusals->Add(
      status, {.id = request_.Header(kRequestIdHeader), .peer = request_.peer, .method = method});
}

bool ServerExchange::Take(std::string* out) {
  std::lock_guard lock(mutex_);
  posted_ = false;
  out->swap(pending_);
  return ended_;
}

void ServerExchange::OnSent(size_t bytes) {
  unsent_.fetch_sub(bytes);
  last_sent_ = std::chrono::steady_clock::now();
  if (on_sent_) on_sent_();
}

void ServerExchange::OnGone() {
  gone_ = true;
  const std::function<void()> on_gone = std::move(on_gone_);
  Release();
  if (on_gone) on_gone();
}

void ServerExchange::Release() {
  writer_.reset();
  silence_timer_.cancel();
  on_sent_ = nullptr;
  on_gone_ = nullptr;
}

std::string ServerExchange::Head(int status, std::string_view content_type,
                                 const HttpHeaders& headers) const {
  const http::status known = http::int_to_status(static_cast<unsigned>(status));
  const std::string_view phrase =
      known == http::status::unknown ? "" : std::string_view(http::obsolete_reason(known));
  std::string head = StrCat("HTTP/1.1 ", status, " ", phrase, "\r\nContent-Type: ", content_type,
                            "\r\n", kCommonHeaders);
  for (const auto& [name, value] : headers) head += StrCat(name, ": ", value, "\r\n");
  if (const std::string_view id = request_.Header(kRequestIdHeader); !id.empty())
    head += StrCat(kRequestIdHeader, ": ", id, "\r\n");
  // Anthropic's clients read the id under this name.
  if (request_.error_shape == ErrorShape::kAnthropic)
    head += StrCat("request-id: ", request_.Header(kRequestIdHeader), "\r\n");
  if (!request_.allowed_origin.empty()) {
    head += StrCat("Access-Control-Allow-Origin: ", request_.allowed_origin,
                   "\r\nAccess-Control-Expose-Headers: *\r\nVary: Origin\r\n");
  }
  if (!keep_alive_) head += "Connection: close\r\n";
  return head += "\r\n";
}

void ServerExchange::Append(std::string_view bytes, bool end, std::string comment) {
  {
    std::lock_guard lock(mutex_);
    if (!comment.empty()) comment_ = std::move(comment);
    if (!Add(bytes, end)) return;
  }
  PostFlush();
}

bool ServerExchange::Add(std::string_view bytes, bool end) {
  if (ended_) return false;
  unsent_.fetch_add(bytes.size());
  pending_ += bytes;
  ended_ = end;
  return !std::exchange(posted_, true);
}

void ServerExchange::PostFlush() {
  Post([self = shared_from_this()] {
    if (const auto writer = self->writer_) writer->Flush(self.get());
  });
}

}  // namespace polysketch
