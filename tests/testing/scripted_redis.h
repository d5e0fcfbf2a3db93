// A Redis server that misbehaves, for one connection of a test.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace polysketch::testing {

// Accepts one connection and answers its pipelines with the given bytes, one after the other, and
// with the reply to the PING at their ends. Then it reads and says nothing, as a server that hangs;
// with `refuses_more` it refuses another connection at once.
class ScriptedRedis {
 public:
  explicit ScriptedRedis(std::vector<std::string> answers, bool refuses_more = false)
      : listen_fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        answers_(std::move(answers)),
        refuses_more_(refuses_more) {
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
  // Of "*2\r\n$4\r\nPING\r\n$1\r\n7\r\n" at the end: "$1\r\n7\r\n".
  static std::string ReplyToPing(std::string_view pipeline) {
    constexpr std::string_view kPing = "PING\r\n";
    const size_t ping = pipeline.rfind(kPing);
    return ping == pipeline.npos ? "" : std::string(pipeline.substr(ping + kPing.size()));
  }

  void Serve() {
    const int fd = accept(listen_fd_, nullptr, nullptr);
    if (refuses_more_) shutdown(listen_fd_, SHUT_RDWR);
    char command[4096];
    for (const std::string& answer : answers_) {
      const ssize_t got = recv(fd, command, sizeof(command), 0);
      if (got <= 0) break;
      const std::string bytes = answer + ReplyToPing({command, static_cast<size_t>(got)});
      if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) break;
    }
    while (recv(fd, command, sizeof(command), 0) > 0) {
    }
    close(fd);
  }

  const int listen_fd_;
  const std::vector<std::string> answers_;
  const bool refuses_more_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace polysketch::testing
