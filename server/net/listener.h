// The server's own listening socket. gRPC gets accepted connections, so that their number is
// bounded and ConnectionTable can close each of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "server/net/connections.h"

namespace polysketch {

class Listener {
 public:
  // `address` is "HOST:PORT" or "[::1]:PORT". For a name, the first of its addresses that can be
  // bound is used; port 0 binds a free port. INVALID_ARGUMENT for another form or an unknown name,
  // UNAVAILABLE if no address can be bound. Connections wait in the kernel until Start. `table`
  // outlives the listener.
  static Result<std::unique_ptr<Listener>> Bind(const std::string& address, ConnectionTable* table);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The bound address: "127.0.0.1:50051".
  const std::string& address() const { return address_; }
  // Starts the thread that accepts connections. `handle` owns the descriptor that it receives.
  void Start(std::function<void(int fd)> handle);

 private:
  Listener(int fd, std::string address, ConnectionTable* table);
  void Loop();
  // Accepts all pending connections.
  void Accept();
  // Adds a connection to the table and passes it to handle_; closes it if the table refuses it.
  void Register(int fd, const std::string& key);
  // Removes a closed connection from the table.
  void Forget(ConnectionTable::Id id);

  const int listen_fd_;
  const int epoll_fd_;
  const int stop_fd_;  // eventfd
  const std::string address_;
  ConnectionTable* const table_;
  std::function<void(int)> handle_;
  std::thread thread_;
};

}  // namespace polysketch
