// The socket of a client, which never blocks: bytes as they are, or TLS.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_st SSL;

namespace polysketch {

// Not thread-safe.
class ClientSocket {
 public:
  enum class Io {
    kDone,
    kAgain,   // the socket is not ready
    kClosed,  // the client has left, or broke TLS
  };

  // Owns `fd`, which is non-blocking. `tls`: null for a connection without TLS.
  ClientSocket(int fd, SSL_CTX* tls);
  ~ClientSocket();
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  int fd() const { return fd_; }
  // Whether Handshake has not returned kDone. False without TLS.
  bool needs_handshake() const { return needs_handshake_; }
  Io Handshake();
  // Reads 1 to `size` bytes; `size` is at least kMinRead, so that all bytes of a record of TLS fit.
  static constexpr size_t kMinRead = 16 << 10;
  Io Read(char* buffer, size_t size, size_t* count);
  // Writes what the socket takes, and removes it from *bytes.
  Io Write(std::string_view* bytes);
  // Whether TLS waits for room to write.
  bool wants_write() const { return wants_write_; }
  // Tells the client that no bytes follow.
  void Shutdown();
  // Why TLS failed; empty if it did not.
  const std::string& error() const { return error_; }

 private:
  Io Result(int result);

  const int fd_;
  const std::unique_ptr<SSL, void (*)(SSL*)> tls_;  // null without TLS
  bool needs_handshake_;
  bool wants_write_ = false;
  std::string error_;
};

}  // namespace polysketch
