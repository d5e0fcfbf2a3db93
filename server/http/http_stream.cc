#include "server/http/http_stream.h"

namespace polysketch {

void TcpBytes::ReadSome(boost::asio::mutable_buffer buffer, IoHandler handler) {
  stream_.async_read_some(boost::asio::mutable_buffers_1(buffer), std::move(handler));
}

void TcpBytes::WriteSome(boost::asio::const_buffer buffer, IoHandler handler) {
  stream_.async_write_some(boost::asio::const_buffers_1(buffer), std::move(handler));
}

HttpStream::HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* context)
    : bytes_(std::move(socket)) {
  if (context != nullptr) tls_ = std::make_unique<Tls>(bytes_, SSL_new(context));
}

void HttpStream::ReadSome(boost::asio::mutable_buffer buffer, IoHandler handler) {
  if (tls_ == nullptr) return bytes_.ReadSome(buffer, std::move(handler));
  tls_->async_read_some(boost::asio::mutable_buffers_1(buffer), std::move(handler));
}

void HttpStream::WriteSome(boost::asio::const_buffer buffer, IoHandler handler) {
  if (tls_ == nullptr) return bytes_.WriteSome(buffer, std::move(handler));
  tls_->async_write_some(boost::asio::const_buffers_1(buffer), std::move(handler));
}

}  // namespace polysketch
