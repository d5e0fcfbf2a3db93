// The byte stream of an HTTP connection: TCP, or TLS on it.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <utility>

namespace polysketch {

// An AsyncStream of Boost.Asio. Timeouts are those of tcp().
class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using Tls = boost::asio::ssl::stream<boost::beast::tcp_stream&>;

  // `context`: null for a connection without TLS.
  HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* context) : tcp_(std::move(socket)) {
    if (context != nullptr) tls_ = std::make_unique<Tls>(tcp_, SSL_new(context));
  }

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  // Null without TLS.
  Tls* tls() { return tls_.get(); }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_ != nullptr) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      tcp_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_ != nullptr) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      tcp_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::unique_ptr<Tls> tls_;
};

// Whether a handshake failed because the client speaks HTTP without TLS.
inline bool IsPlainHttp(const boost::system::error_code& error) {
  return error.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace polysketch
