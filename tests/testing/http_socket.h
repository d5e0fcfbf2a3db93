// Clients of an HttpServer that send any bytes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace polysketch::testing {

// A connection of a client with the address `from`.
class HttpSocket {
 public:
  explicit HttpSocket(const std::string& address, const char* from = "127.0.0.1")
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in local{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    inet_pton(AF_INET, from, &local.sin_addr);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&local), sizeof(local)), 0);
    sockaddr_in server{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    server.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &server.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&server), sizeof(server)), 0);
  }
  HttpSocket(HttpSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  HttpSocket& operator=(HttpSocket&&) = delete;
  ~HttpSocket() {
    if (fd_ >= 0) close(fd_);
  }
  void Send(std::string_view bytes) const {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  // Sends what the server may refuse to read.
  void TrySend(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void Get(const std::string& path) const { Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"); }
  // Sends no more.
  void EndOfInput() const { shutdown(fd_, SHUT_WR); }
  // The status of a response that arrives within a second; 0 without one.
  int Status() const {
    const std::string text = Read(12, std::chrono::seconds(1));
    return text.size() < 12 ? 0 : std::stoi(text.substr(9, 3));
  }
  // What the server sends until it closes the connection, or sends nothing for `time`.
  std::string ReadAll(std::chrono::milliseconds time = std::chrono::seconds(20)) const {
    return Read(static_cast<size_t>(-1), time);
  }
  // As ReadAll, until `text` has come.
  std::string ReadUntil(std::string_view text) const {
    std::string all;
    while (all.find(text) == std::string::npos) {
      const std::string more = Read(1, std::chrono::seconds(20));
      if (more.empty()) break;
      all += more;
    }
    return all;
  }
  // Whether the server closes the connection within `time`.
  bool Closed(std::chrono::milliseconds time) const {
    char byte = 0;
    return Readable(time) && recv(fd_, &byte, 1, MSG_PEEK) <= 0;
  }

 private:
  bool Readable(std::chrono::milliseconds time) const {
    pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&poll_fd, 1, static_cast<int>(time.count())) > 0;
  }
  // At least `least` bytes, unless they do not come.
  std::string Read(size_t least, std::chrono::milliseconds time) const {
    std::string text;
    while (text.size() < least && Readable(time)) {
      char buffer[4096];
      const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
      if (size <= 0) break;
      text.append(buffer, static_cast<size_t>(size));
    }
    return text;
  }
  int fd_;
};

}  // namespace polysketch::testing
