// A redis-server on a free port that keeps nothing, for one test.
#pragma once

#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace polysketch::testing {

class RedisServer {
 public:
  static bool Exists() { return std::system("command -v redis-server >/dev/null") == 0; }

  // `folder`: for its configuration. User "worker" has the password "hidden".
  static constexpr int64_t kMaxMemory = int64_t{4} << 30;

  explicit RedisServer(const std::filesystem::path& folder) : port_(FreePort()) {
    const std::string config = (folder / "redis.conf").string();
    std::ofstream(config) << "port " << port_ << "\nmaxmemory " << kMaxMemory
                          << "\nbind 127.0.0.1\nsave \"\"\nappendonly no\nloglevel warning\n"
                             "logfile /dev/null\nuser worker on >hidden ~* &* +@all\n";
    pid_ = fork();
    PS_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execlp("redis-server", "redis-server", config.c_str(), nullptr);
    _exit(127);
  }
  ~RedisServer() { Stop(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  void Stop() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int port() const { return port_; }
  // Whether it takes connections: a moment after the start.
  bool Answers() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(port_);
    const bool answers = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return answers;
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  static int FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    PS_CHECK(bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0);
    close(fd);
    return ntohs(address.sin_port);
  }

  const int port_;
  pid_t pid_ = 0;
};

}  // namespace polysketch::testing
