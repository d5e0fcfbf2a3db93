#include "server/net/client_socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace polysketch {

ClientSocket::ClientSocket(int fd, SSL_CTX* tls)
    : fd_(fd),
      tls_(tls == nullptr ? nullptr : SSL_new(tls), SSL_free),
      needs_handshake_(tls_ != nullptr) {
  if (tls_ == nullptr) return;
  SSL_set_fd(tls_.get(), fd);
  SSL_set_accept_state(tls_.get());
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                               SSL_MODE_RELEASE_BUFFERS);
}

ClientSocket::~ClientSocket() { close(fd_); }

ClientSocket::Io ClientSocket::Result(int result) {
  if (result > 0) return Io::kDone;
  const int error = SSL_get_error(tls_.get(), result);
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (wants_write_ || error == SSL_ERROR_WANT_READ) return Io::kAgain;
  if (error == SSL_ERROR_SSL) {
    const char* reason = ERR_reason_error_string(ERR_peek_last_error());
    error_ = reason == nullptr ? "unknown error" : reason;
  }
  return Io::kClosed;
}

ClientSocket::Io ClientSocket::Handshake() {
  ERR_clear_error();
  const Io io = Result(SSL_do_handshake(tls_.get()));
  if (io == Io::kDone) needs_handshake_ = false;
  return io;
}

ClientSocket::Io ClientSocket::Read(char* buffer, size_t size, size_t* count) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    return Result(SSL_read_ex(tls_.get(), buffer, size, count));
  }
  const ssize_t read = recv(fd_, buffer, size, 0);
  if (read > 0) {
    *count = static_cast<size_t>(read);
    return Io::kDone;
  }
  return read < 0 && (errno == EAGAIN || errno == EINTR) ? Io::kAgain : Io::kClosed;
}

ClientSocket::Io ClientSocket::Write(std::string_view* bytes) {
  while (!bytes->empty()) {
    size_t written = 0;
    if (tls_ != nullptr) {
      ERR_clear_error();
      const Io io = Result(SSL_write_ex(tls_.get(), bytes->data(), bytes->size(), &written));
      if (io != Io::kDone) return io;
    } else {
      const ssize_t sent = send(fd_, bytes->data(), bytes->size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR ? Io::kAgain : Io::kClosed;
      written = static_cast<size_t>(sent);
    }
    bytes->remove_prefix(written);
  }
  return Io::kDone;
}

void ClientSocket::Shutdown() {
  if (tls_ != nullptr && !needs_handshake_) {
    ERR_clear_error();
    SSL_shutdown(tls_.get());
  }
  shutdown(fd_, SHUT_WR);
}

}  // namespace polysketch
