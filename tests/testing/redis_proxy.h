// A connection to a Redis server that is slow, hangs, drips, breaks or says more than it was asked,
// for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace polysketch::testing {

// Forwards connections to a port of this machine.
class RedisProxy {
 public:
  explicit RedisProxy(int target) : target_(target), listen_fd_(NewSocket()) {
    sockaddr_in address = Loopback(0);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    PS_CHECK(bind(listen_fd_, generic, sizeof(address)) == 0 && listen(listen_fd_, 64) == 0);
    socklen_t size = sizeof(address);
    PS_CHECK(getsockname(listen_fd_, generic, &size) == 0);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~RedisProxy() {
    ends_ = true;
    shutdown(listen_fd_, SHUT_RDWR);
    accepting_.join();
    BreakConnections();
    for (std::thread& thread : threads_) thread.join();
    close(listen_fd_);
  }
  int port() const { return port_; }

  std::atomic<int> delay_ms{0};    // of what a client sends
  std::atomic<bool> hangs{false};  // answers are not forwarded
  std::atomic<bool> drips{false};  // answers are forwarded a byte in 20 ms
  std::atomic<bool> loses{false};  // a connection breaks in place of its next answer
  // Answers are forwarded, and again after this time; -1: once.
  std::atomic<int> repeats_after_ms{-1};
  std::atomic<int> exchanges{0};    // how often a client has sent something
  std::atomic<int> connections{0};  // so far
  void set_target(int port) { target_ = port; }

  void BreakConnections() {
    std::lock_guard lock(mutex_);
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }

 private:
  static int NewSocket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void Accept() {
    while (!ends_) {
      const int client = accept(listen_fd_, nullptr, nullptr);
      if (client < 0) return;
      ++connections;
      std::lock_guard lock(mutex_);
      open_.push_back(client);
      threads_.emplace_back([this, client] { Serve(client); });
    }
  }

  void Serve(int client) {
    const int server = NewSocket();
    const sockaddr_in address = Loopback(target_);
    const bool reached =
        connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    while (reached && Forward(client, server)) {
    }
    std::lock_guard lock(mutex_);
    std::erase(open_, client);
    close(client);
    close(server);
  }

  // Forwards what either side has sent. Returns false at the end of a connection.
  bool Forward(int client, int server) {
    pollfd ready[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    poll(ready, 2, 20);
    char bytes[1 << 16];
    if (ready[0].revents != 0) {
      const ssize_t got = recv(client, bytes, sizeof(bytes), 0);
      if (got <= 0) return false;
      ++exchanges;
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      send(server, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
    }
    if (ready[1].revents == 0) return true;
    if (hangs) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return true;
    }
    if (drips) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const ssize_t got = recv(server, bytes, drips ? 1 : sizeof(bytes), 0);
    if (got <= 0 || loses) return false;
    const auto forward = [&] {
      return send(client, bytes, static_cast<size_t>(got), MSG_NOSIGNAL) == got;
    };
    const int repeats = repeats_after_ms;
    if (!forward()) return false;
    if (repeats < 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(repeats));
    return forward();
  }

  std::atomic<int> target_;
  const int listen_fd_;
  int port_ = 0;
  std::atomic<bool> ends_{false};
  std::mutex mutex_;
  std::vector<int> open_;             // guarded by mutex_: connections of clients
  std::vector<std::thread> threads_;  // guarded by mutex_ until accepting_ has ended
  std::thread accepting_;
};

}  // namespace polysketch::testing
