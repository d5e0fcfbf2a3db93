// The server's own listening socket, of TCP or a unix socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"

namespace polysketch {

class Listener {
 public:
  // `address` is "HOST:PORT", "[::1]:PORT" or "unix:PATH". For a name, the first of its addresses
  // that can be bound is used; port 0 binds a free port. A unix socket at PATH without a listening
  // process is replaced; the owner and the group may connect. INVALID_ARGUMENT for another form or
  // an unknown name, UNAVAILABLE if no address can be bound. Connections wait in the kernel until
  // Start.
  static Result<std::unique_ptr<Listener>> Bind(const std::string& address);
  ~Listener();  // removes the unix socket
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The bound address: "127.0.0.1:50051", "unix:PATH".
  const std::string& address() const { return address_; }
  // Starts the thread that accepts connections. `handle` owns the descriptor that it receives,
  // which is non-blocking; `key`: of ConnectionTable.
  void Start(std::function<void(int fd, const std::string& key)> handle);

 private:
  Listener(int fd, std::string address);
  void Loop();
  // Accepts all pending connections.
  void Accept();

  const int listen_fd_;
  const int stop_fd_;  // eventfd
  const std::string address_;
  uint64_t unix_connections_ = 0;  // accepted; their clients have no address
  std::function<void(int, const std::string&)> handle_;
  std::thread thread_;
};

}  // namespace polysketch
