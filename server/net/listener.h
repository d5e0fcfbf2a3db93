// The server's own listening socket. gRPC is handed accepted connections, so that their number is
// bounded and the table can close one of them.
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
  // "HOST:PORT", "[::1]:PORT"; HOST may be a name, whose first address that can be bound is taken;
  // port 0 takes a free one. INVALID_ARGUMENT for another form or an unknown name, UNAVAILABLE when
  // it cannot be bound. Connections wait in the kernel until Start. `table` outlives the listener.
  static Result<std::unique_ptr<Listener>> Bind(const std::string& address, ConnectionTable* table);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The real address: "127.0.0.1:50051".
  const std::string& address() const { return address_; }
  // Starts the accepting thread. `take` owns the descriptor that it gets.
  void Start(std::function<void(int fd)> take);

 private:
  Listener(int fd, std::string address, ConnectionTable* table);
  void Loop();
  void Accept();
  void Forget(ConnectionTable::Id id);

  const int listen_fd_;
  const int epoll_fd_;
  const int stop_fd_;  // eventfd
  const std::string address_;
  ConnectionTable* const table_;
  std::function<void(int)> take_;
  std::thread thread_;
};

}  // namespace polysketch
