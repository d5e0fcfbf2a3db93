#include "clients/loadgen/http_stream.h"

#include <bit>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/none.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/bounded_json.h"
#include "clients/cpp/server_sent_events.h"

namespace polysketch::loadgen {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using nlohmann::json;

struct Connection {
  explicit Connection(asio::io_context* io) : stream(*io) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
};

// Used on the thread of `io`, except for `options` and `server`, which do not change.
struct Loop {
  asio::io_context io{1};
  HttpOptions options;
  tcp::resolver::results_type server;
  std::vector<std::unique_ptr<Connection>> idle;
};

std::string Body(const Request& request, float temperature) {
  json body = {{"prompt", request.prompt},
               {"max_tokens", request.output_tokens},
               {"temperature", temperature},
               {"seed", std::bit_cast<int64_t>(request.seed)},
               {"ignore_eos", true},  // outputs have the sampled lengths
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!request.session.empty()) body["session"] = request.session;
  return body.dump();
}

class HttpStream final : public Stream {
 public:
  HttpStream(StreamParts parts, Loop* loop)
      : Stream(std::move(parts)), loop_(loop), timer_(loop->io) {
    const HttpOptions& options = loop->options;
    message_.method(http::verb::post);
    message_.target("/v1/completions");
    message_.set(http::field::host, options.address);
    message_.set(http::field::content_type, "application/json");
    if (!options.api_key.empty())
      message_.set(http::field::authorization, "Bearer " + options.api_key);
    message_.body() = Body(request(), options.temperature);
    message_.prepare_payload();
  }
  void Start() override {
    asio::post(loop_->io, [this] { Begin(); });
  }
  void Cancel() override {
    asio::post(loop_->io, [this, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      Finish("CANCELLED");
      if (started_) EndIfIdle();
    });
  }

 private:
  void Begin();
  void Connect();
  void Send();
  void Read();
  void OnRead(error_code error);
  // Handles the events that have arrived in full.
  void TakeEvents();
  void OnEvent(std::string_view data);
  // Sets the status of the result, once. One other than OK closes the connection.
  void Finish(std::string status);
  void EndIfIdle();
  // The handler of an operation: runs `work`, unless the stream has finished in the meantime.
  template <typename Work>
  auto Then(Work work) {
    ++operations_;
    return [this, work = std::move(work)](error_code error, auto&&...) {
      --operations_;
      if (!status_.has_value()) work(error);
      EndIfIdle();
    };
  }

  Loop* const loop_;
  http::request<http::string_body> message_;
  std::unique_ptr<Connection> connection_;
  bool reused_ = false;  // the connection has served another request
  std::optional<http::response_parser<http::string_body>> parser_;
  std::string events_;  // received and not handled
  asio::steady_timer timer_;
  bool started_ = false;
  bool all_sent_ = false;  // [DONE] has arrived
  int operations_ = 0;     // outstanding
  std::optional<std::string> status_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

void HttpStream::Begin() {
  started_ = true;
  if (const double timeout = loop_->options.timeout; timeout > 0) {
    timer_.expires_at(parts_.due + Duration(timeout));
    timer_.async_wait(Then([this](error_code error) {
      if (!error) Finish("DEADLINE_EXCEEDED");
    }));
  }
  if (!status_.has_value()) Connect();
  EndIfIdle();
}

void HttpStream::Connect() {
  reused_ = !loop_->idle.empty();
  if (reused_) {
    connection_ = std::move(loop_->idle.back());
    loop_->idle.pop_back();
    return Send();
  }
  connection_ = std::make_unique<Connection>(&loop_->io);
  connection_->stream.async_connect(loop_->server, Then([this](error_code error) {
                                      if (error) return Finish("UNAVAILABLE");
                                      error_code ignored;
                                      connection_->stream.socket().set_option(tcp::no_delay(true),
                                                                              ignored);
                                      Send();
                                    }));
}

void HttpStream::Send() {
  http::async_write(connection_->stream, message_, Then([this](error_code) {
                      // A server that refuses the request may close before it has read all of it:
                      // the response says why.
                      parser_.emplace();
                      parser_->body_limit(boost::none);
                      Read();
                    }));
}

void HttpStream::Read() {
  http::async_read_some(connection_->stream, connection_->buffer, *parser_,
                        Then([this](error_code error) { OnRead(error); }));
}

void HttpStream::OnRead(error_code error) {
  if (error && reused_ && !parser_->got_some()) {  // the server has closed idle connections
    loop_->idle.clear();
    return Connect();
  }
  if (error) return Finish("UNAVAILABLE");
  const bool ok = parser_->is_header_done() && parser_->get().result() == http::status::ok;
  if (ok) TakeEvents();
  if (status_.has_value()) return;
  if (!parser_->is_done()) return Read();
  if (!ok) return Finish(StrCat("HTTP ", parser_->get().result_int()));
  if (!all_sent_) return Finish("UNAVAILABLE");
  if (parser_->keep_alive()) loop_->idle.push_back(std::move(connection_));
  Finish("OK");
}

void HttpStream::TakeEvents() {
  events_ += std::exchange(parser_->get().body(), {});
  (void)polysketch::TakeEvents(&events_, [this](std::string_view data) {
    OnEvent(data);
    return Status();
  });
}

void HttpStream::OnEvent(std::string_view data) {
  if (data == "[DONE]") {
    all_sent_ = true;
    return;
  }
  // To parse each event would take the processor from a server beside the client.
  if (data.find(R"("finish_reason":null)") != std::string_view::npos) return AddMessage(1, nullptr);
  if (data.find(R"("finish_reason":")") != std::string_view::npos) return;  // the end of the text
  const Result<json> event = ParseJson(data);
  if (!event.ok() || !event->contains("usage")) return Finish("error event");
  const json& usage = event->at("usage");
  result_.prompt_tokens = usage.value("prompt_tokens", int64_t{0});
  result_.cached_tokens =
      usage.value(json::json_pointer("/prompt_tokens_details/cached_tokens"), int64_t{0});
  AddTokens(usage.value("completion_tokens", int64_t{0}) - result_.output_tokens);
}

void HttpStream::Finish(std::string status) {
  if (status_.has_value()) return;
  status_ = std::move(status);
  timer_.cancel();
  if (*status_ != "OK" && connection_ != nullptr) connection_->stream.close();
}

void HttpStream::EndIfIdle() {
  if (operations_ == 0 && status_.has_value()) End(*status_);
}

class BeastClient final : public HttpClient {
 public:
  BeastClient(const HttpOptions& options, tcp::resolver::results_type server) {
    loop_.options = options;
    loop_.server = std::move(server);
    thread_ = std::thread([this] { loop_.io.run(); });
  }
  ~BeastClient() override {
    work_.reset();
    thread_.join();
  }
  std::unique_ptr<Stream> NewStream(StreamParts parts) override {
    return std::make_unique<HttpStream>(std::move(parts), &loop_);
  }

 private:
  Loop loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ =
      asio::make_work_guard(loop_.io);
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::Create(const HttpOptions& options) {
  const size_t colon = options.address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == options.address.size())
    return InvalidArgument("expected HOST:PORT of the HTTP port, found '", options.address, "'");
  std::string host = options.address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  asio::io_context io;
  tcp::resolver resolver(io);
  error_code error;
  auto server = resolver.resolve(host, options.address.substr(colon + 1), error);
  if (error) return Unavailable("cannot resolve '", options.address, "': ", error.message());
  return Result<std::unique_ptr<HttpClient>>(
      std::make_unique<BeastClient>(options, std::move(server)));
}

}  // namespace polysketch::loadgen
