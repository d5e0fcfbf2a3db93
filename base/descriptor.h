// Owns a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace polysketch {

class Descriptor {
 public:
  Descriptor() = default;
  // -1: none, as after a system call that failed.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // The caller owns the descriptor then.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace polysketch
