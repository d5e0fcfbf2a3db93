#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <future>
#include <tuple>
#include <vector>

#include "base/start_thread.h"
#include "server/http/http_connection.h"

namespace polysketch {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Time until the next accept after an error.
constexpr std::chrono::milliseconds kAcceptPause{50};

}  // namespace

HttpServer::HttpServer(const HttpLimits& limits, Guards guards, Handler handler) {
  loop_.limits = limits;
  loop_.guards = std::move(guards);
  loop_.handler = std::move(handler);
}

HttpServer::~HttpServer() {
  asio::post(loop_.io, [this] { StopListening(&HttpConnection::Close); });
  work_.reset();
  if (thread_.joinable()) thread_.join();
}

void HttpServer::Drain(const Status& why) {
  std::promise<void> done;
  asio::post(loop_.io, [&] {
    StopListening([&](HttpConnection* connection) { connection->EndWait(why); });
    done.set_value();
  });
  done.get_future().wait();
}

void HttpServer::StopListening(const std::function<void(HttpConnection*)>& what) {
  loop_.draining = true;
  error_code ignored;
  acceptor_.close(ignored);
  std::vector<std::shared_ptr<HttpConnection>> all;
  for (HttpConnection* connection : loop_.connections) {
    if (auto shared = connection->weak_from_this().lock()) all.push_back(std::move(shared));
  }
  for (const auto& connection : all) what(connection.get());
}

Status HttpServer::Listen(const std::string& address) {
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

void HttpServer::Accept() {
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

void HttpServer::Admit(tcp::socket socket) {
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

bool HttpServer::CloseOne() {
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

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                      const HttpLimits& limits, Guards guards,
                                                      Handler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer(limits, std::move(guards), std::move(handler)));
  PS_RETURN_IF_ERROR(server->Listen(address));
  return server;
}

}  // namespace polysketch
