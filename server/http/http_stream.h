// The byte stream of an HTTP connection: TCP, or TLS on it.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <functional>
#include <memory>
#include <utility>

namespace polysketch {

using IoHandler = std::function<void(boost::system::error_code error, size_t bytes)>;

// An AsyncStream of Boost.Asio whose reads and writes take one buffer and one type of handler: what
// Asio and Beast make of a handler takes seconds to compile.
class OneHandlerStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using lowest_layer_type = boost::asio::ip::tcp::socket::lowest_layer_type;

  virtual ~OneHandlerStream() = default;
  virtual executor_type get_executor() = 0;
  virtual lowest_layer_type& lowest_layer() = 0;
  // Read and write at most the buffer, at least a byte of it.
  virtual void ReadSome(boost::asio::mutable_buffer buffer, IoHandler handler) = 0;
  virtual void WriteSome(boost::asio::const_buffer buffer, IoHandler handler) = 0;

  // Of several buffers, the first is used.
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    ReadSome(*boost::asio::buffer_sequence_begin(buffers), Shared(std::forward<Handler>(handler)));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    WriteSome(*boost::asio::buffer_sequence_begin(buffers), Shared(std::forward<Handler>(handler)));
  }

 private:
  // std::function copies what it holds; handlers of composed operations only move.
  template <typename Handler>
  static IoHandler Shared(Handler&& handler) {
    using Held = std::decay_t<Handler>;
    return [held = std::make_shared<Held>(std::forward<Handler>(handler))](
               boost::system::error_code error, size_t bytes) {
      Held called = std::move(*held);
      called(error, bytes);
    };
  }
};

// TCP.
class TcpBytes : public OneHandlerStream {
 public:
  explicit TcpBytes(boost::asio::ip::tcp::socket socket) : stream_(std::move(socket)) {}

  executor_type get_executor() override { return stream_.get_executor(); }
  lowest_layer_type& lowest_layer() override { return stream_.socket(); }
  void ReadSome(boost::asio::mutable_buffer buffer, IoHandler handler) override;
  void WriteSome(boost::asio::const_buffer buffer, IoHandler handler) override;
  boost::beast::tcp_stream& stream() { return stream_; }

 private:
  boost::beast::tcp_stream stream_;
};

// TCP, or TLS. Timeouts are those of tcp().
class HttpStream : public OneHandlerStream {
 public:
  using Tls = boost::asio::ssl::stream<TcpBytes&>;

  // `context`: null for a connection without TLS.
  HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* context);

  executor_type get_executor() override { return bytes_.get_executor(); }
  lowest_layer_type& lowest_layer() override { return bytes_.lowest_layer(); }
  void ReadSome(boost::asio::mutable_buffer buffer, IoHandler handler) override;
  void WriteSome(boost::asio::const_buffer buffer, IoHandler handler) override;

  // The bytes below TLS.
  TcpBytes& bytes() { return bytes_; }
  boost::beast::tcp_stream& tcp() { return bytes_.stream(); }
  boost::asio::ip::tcp::socket& socket() { return bytes_.stream().socket(); }
  // Null without TLS.
  Tls* tls() { return tls_.get(); }

 private:
  TcpBytes bytes_;
  std::unique_ptr<Tls> tls_;
};

// Whether a handshake failed because the client speaks HTTP without TLS.
inline bool IsPlainHttp(const boost::system::error_code& error) {
  return error.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace polysketch
