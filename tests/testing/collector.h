// A collector of OpenTelemetry in this process: it keeps the bodies that are posted to it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace polysketch::testing {

class Collector {
 public:
  Collector() : listen_fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    PS_CHECK(bind(listen_fd_, generic, sizeof(address)) == 0 && listen(listen_fd_, 64) == 0);
    socklen_t size = sizeof(address);
    PS_CHECK(getsockname(listen_fd_, generic, &size) == 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~Collector() {
    ends_ = true;
    shutdown(listen_fd_, SHUT_RDWR);
    if (const int fd = open_fd_; fd >= 0) shutdown(fd, SHUT_RDWR);
    thread_.join();
    close(listen_fd_);
  }
  const std::string& url() const { return url_; }

  std::atomic<bool> hangs{false};  // reads requests and answers none
  std::atomic<int> status{200};    // of answers
  std::atomic<int> requests{0};

  // The bodies so far, and the head of the last request.
  std::vector<std::string> bodies() const {
    std::lock_guard lock(mutex_);
    return bodies_;
  }
  std::string head() const {
    std::lock_guard lock(mutex_);
    return head_;
  }

 private:
  // One connection after the other, one request on each.
  void Serve() {
    while (!ends_) {
      const int fd = accept(listen_fd_, nullptr, nullptr);
      if (fd < 0) return;
      open_fd_ = fd;
      if (Read(fd)) Answer(fd);
      open_fd_ = -1;
      close(fd);
    }
  }

  bool Read(int fd) {
    std::string bytes;
    size_t body = std::string::npos;
    size_t length = 0;
    while (body == std::string::npos || bytes.size() < body + length) {
      char buffer[65536];
      const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
      if (n <= 0) return false;
      bytes.append(buffer, static_cast<size_t>(n));
      if (body != std::string::npos || bytes.find("\r\n\r\n") == std::string::npos) continue;
      body = bytes.find("\r\n\r\n") + 4;
      const std::string name = "Content-Length: ";
      length = std::stoul(bytes.substr(bytes.find(name) + name.size()));
    }
    ++requests;
    std::lock_guard lock(mutex_);
    head_ = bytes.substr(0, body);
    if (!hangs && status == 200) bodies_.push_back(bytes.substr(body));
    return true;
  }

  void Answer(int fd) {
    char byte = 0;
    if (hangs) {
      recv(fd, &byte, 1, 0);  // until the client leaves
      return;
    }
    const std::string answer = "HTTP/1.1 " + std::to_string(status) +
                               " -\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  }

  const int listen_fd_;
  std::string url_;
  std::atomic<bool> ends_{false};
  std::atomic<int> open_fd_{-1};
  mutable std::mutex mutex_;
  std::vector<std::string> bodies_;  // guarded by mutex_
  std::string head_;                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace polysketch::testing
