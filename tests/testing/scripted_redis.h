// A Redis server that misbehaves, for one connection of a test.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace polysketch::testing {

// Accepts one connection and answers its commands with the given bytes, one after the other. Then
// it reads and says nothing, as a server that hangs.
class ScriptedRedis {
 public:
  explicit ScriptedRedis(std::vector<std::string> answers)
      : listen_fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), answers_(std::move(answers)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    PS_CHECK(bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    PS_CHECK(listen(listen_fd_, 1) == 0);
    socklen_t size = sizeof(address);
    PS_CHECK(getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~ScriptedRedis() {
    shutdown(listen_fd_, SHUT_RDWR);
    thread_.join();
    close(listen_fd_);
  }
  int port() const { return port_; }

 private:
  void Serve() {
    const int fd = accept(listen_fd_, nullptr, nullptr);
    char command[4096];
    for (const std::string& answer : answers_) {
      if (recv(fd, command, sizeof(command), 0) <= 0) break;
      if (send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
    }
    while (recv(fd, command, sizeof(command), 0) > 0) {
    }
    close(fd);
  }

  const int listen_fd_;
  const std::vector<std::string> answers_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace polysketch::testing
