// Messages and descriptors over AF_UNIX sockets.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "base/descriptor.h"

namespace polysketch::grammar_host {

// The result of the system call `call`, which is repeated while a signal interrupts it.
template <typename Call>
ssize_t Uninterrupted(const Call& call) {
  ssize_t result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

inline ssize_t SendMessage(int socket, std::span<const std::byte> message, int flags) {
  return Uninterrupted(
      [&] { return send(socket, message.data(), message.size(), flags | MSG_NOSIGNAL); });
}
inline ssize_t ReceiveMessage(int socket, std::span<std::byte> message, int flags) {
  return Uninterrupted([&] { return recv(socket, message.data(), message.size(), flags); });
}

// A message of one byte with room for a descriptor.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec data{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

// Passes a descriptor; false if the other side is gone, or takes none within the socket's
// SO_SNDTIMEO: its queue has room for a few (net.unix.max_dgram_qlen).
inline bool SendDescriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* const part = CMSG_FIRSTHDR(&message.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  return Uninterrupted([&] { return sendmsg(socket, &message.header, MSG_NOSIGNAL); }) == 1;
}

// Returns the descriptor that arrives; none at the end of the socket and for another message.
inline Descriptor ReceiveDescriptor(int socket) {
  DescriptorMessage message;
  const ssize_t received =
      Uninterrupted([&] { return recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC); });
  const cmsghdr* const part = CMSG_FIRSTHDR(&message.header);
  if (received != 1 || part == nullptr || part->cmsg_type != SCM_RIGHTS) return Descriptor();
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(part), sizeof(int));
  return Descriptor(descriptor);
}

}  // namespace polysketch::grammar_host
