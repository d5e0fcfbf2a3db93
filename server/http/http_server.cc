#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "base/start_thread.h"
#include "server/http/http_connection.h"
#include "server/http/http_loop.h"

namespace polysketch {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Time until the next accept after an error.
constexpr std::chrono::milliseconds kAcceptPause{50};

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
      ForEachConnection([](HttpConnection* connection) { connection->Close(); });
    });
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }

  Status Listen(const std::string& address);
  const std::string& address() const override { return address_; }
  void Drain() override {
    asio::post(loop_.io, [this] {
      StopListening();
      ForEachConnection([](HttpConnection* connection) { connection->CloseIfIdle(); });
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
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (HttpConnection* connection : loop_.connections) {
      if (auto shared = connection->weak_from_this().lock()) all.push_back(std::move(shared));
    }
    for (const auto& connection : all) f(connection.get());
  }

  HttpLoop loop_;
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
  thread_ = StartThread([this] {
    // A handler that finds no memory drops its connection, and the others go on.
    while (true) {
      try {
        loop_.io.run();
        return;
      } catch (const std::bad_alloc&) {
        continue;
      }
    }
  });
  return Status();
}

void BeastServer::Accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {  // no file descriptor is free, or the client has left
      auto timer = std::make_shared<asio::steady_timer>(loop_.io, kAcceptPause);
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
                    [](const HttpConnection* connection) { return !connection->runs_request(); });
  const bool spare = above > idle;
  const bool full = open >= loop_.max_requests() + kProbeConnections;
  for (int64_t left = spare ? int64_t{full} : above; left > 0; --left) {
    if (!CloseOne()) return;
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  const CertificateStore* const store = loop_.guards.certificates;
  const auto certificates = store == nullptr ? nullptr : store->current();
  SSL_CTX* const tls = certificates == nullptr ? nullptr : certificates->context.get();
  std::make_shared<HttpConnection>(&loop_, std::move(socket), tls, spare)->Start();
}

bool BeastServer::CloseOne() {
  Shares open;
  for (const HttpConnection* connection : loop_.connections) open.Add(connection->principal(), 1);
  const auto rank = [&](const HttpConnection& connection) {
    return std::tuple(-open.Of(connection.principal()).principal, connection.reads_body(),
                      connection.waits_since());
  };
  HttpConnection* first = nullptr;
  for (HttpConnection* connection : loop_.connections) {
    if (connection->runs_request()) continue;
    if (first == nullptr || rank(*connection) < rank(*first)) first = connection;
  }
  const auto closed = first == nullptr ? nullptr : first->weak_from_this().lock();
  if (closed == nullptr) return false;
  closed->Close();
  return true;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                      const HttpLimits& limits, Guards guards,
                                                      Handler handler) {
  auto server = std::make_unique<BeastServer>(limits, std::move(guards), std::move(handler));
  PS_RETURN_IF_ERROR(server->Listen(address));
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace polysketch
