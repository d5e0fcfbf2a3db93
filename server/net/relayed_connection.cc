#include "server/net/relayed_connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

// Bytes that a connection moves in one turn: the others wait meanwhile.
constexpr size_t kTurnBytes = 32 << 10;
// Buffers of an idle connection that are kept.
constexpr size_t kKeptBytes = 16 << 10;

// Time for the last bytes of gRPC to reach the client's machine. A socket that is closed before its
// peer stops sending resets the connection, and bytes on their way are lost.
constexpr std::chrono::milliseconds kLinger{2000};

// Writes what the server's socket takes, and removes it from *bytes. gRPC that has closed its side
// takes everything, and drops it. Returns false for an error of the socket.
bool SendSome(int fd, std::string_view* bytes) {
  while (!bytes->empty()) {
    const ssize_t sent = send(fd, bytes->data(), bytes->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
      *bytes = {};
      return true;
    }
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    bytes->remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Keeps the last `rest` bytes.
void KeepRest(size_t rest, std::string* bytes) {
  bytes->erase(0, bytes->size() - rest);
  if (rest == 0 && bytes->capacity() > kKeptBytes) std::string().swap(*bytes);
}

}  // namespace

RelayedConnection::RelayedConnection(ConnectionTable::Id id, std::string key, int fd, SSL_CTX* tls,
                                     const FrameLimits& limits, MessageMemory* memory,
                                     const std::function<void(int)>* serve)
    : id_(id),
      key_(std::move(key)),
      serve_(serve),
      accepted_(std::chrono::steady_clock::now()),
      client_(fd, tls),
      filter_(limits, PrincipalOfKey(key_), memory, &output_) {}

RelayedConnection::~RelayedConnection() {
  if (server_fd_ >= 0) close(server_fd_);
}

void RelayedConnection::Watch(int epoll_fd) {
  epoll_fd_ = epoll_fd;
  client_interest_ = EPOLLIN;
  epoll_event event{.events = client_interest_, .data = {.u64 = Data(true)}};
  PS_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, client_.fd(), &event) == 0) << std::strerror(errno);
}

void RelayedConnection::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return Close(Unavailable("no socket: ", std::strerror(errno)));
  // gRPC reports the name of our end as its peer.
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = PeerName(id_, key_);
  const size_t length = std::min(text.size(), sizeof(name.sun_path) - 1);
  std::memcpy(name.sun_path + 1, text.data(), length);  // an abstract name: it begins with a zero
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  server_fd_ = ends[0];
  server_interest_ = EPOLLIN;
  epoll_event event{.events = server_interest_, .data = {.u64 = Data(false)}};
  // Another process of the machine may hold the name, and the kernel's memory for epoll may be used
  // up.
  if (bind(server_fd_, reinterpret_cast<const sockaddr*>(&name), size) != 0 ||
      epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, server_fd_, &event) != 0) {
    const Status status = Unavailable("no socket: ", std::strerror(errno));
    close(ends[1]);
    return Close(status);
  }
  server_watched_ = true;
  (*serve_)(ends[1]);
}

void RelayedConnection::OnClient(uint32_t events, TimePoint now) {
  if (closed_) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return Close(Status());
  if (client_.needs_handshake()) {
    if (client_.Handshake() == ClientSocket::Io::kClosed)
      return Close(InvalidArgument("TLS: ", client_.error()));
    if (client_.needs_handshake()) return UpdateInterest();
  }
  if (!output_.to_client.empty()) WriteClient();
  if (!closed_ && output_.to_server.empty()) ReadClient(now);
  if (!closed_) UpdateInterest();
}

void RelayedConnection::ReadClient(TimePoint now) {
  char buffer[kTurnBytes];
  size_t count = 0;
  while (count + ClientSocket::kMinRead <= sizeof(buffer)) {
    size_t read = 0;
    const ClientSocket::Io io = client_.Read(buffer + count, sizeof(buffer) - count, &read);
    if (io == ClientSocket::Io::kClosed) return Close(Status());
    if (io == ClientSocket::Io::kAgain) break;
    count += read;
  }
  if (count == 0 || lingers_) return;
  const Status status = filter_.FromClient({buffer, count}, now);
  if (status.ok() && server_fd_ < 0 && filter_.started()) Start();
  Apply(status);
}

void RelayedConnection::OnServer(uint32_t events, TimePoint now) {
  if (closed_ || !server_watched_) return;
  if ((events & EPOLLOUT) != 0) WriteServer();
  if (!closed_ && output_.to_client.empty()) ReadServer(now);
  if (closed_) return;
  // Nothing can be read until the client has taken its bytes, and epoll would go on to report it.
  if ((events & (EPOLLERR | EPOLLHUP)) != 0 && !output_.to_client.empty()) UnwatchServer();
  UpdateInterest();
}

void RelayedConnection::ReadServer(TimePoint now) {
  char buffer[kTurnBytes];
  const ssize_t count = recv(server_fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return Linger(now);
  Apply(filter_.FromServer({buffer, static_cast<size_t>(count)}, now));
}

void RelayedConnection::Linger(TimePoint now) {
  lingers_ = true;
  lingers_since_ = now;
  output_.to_server.clear();
  UnwatchServer();
  client_.Shutdown();
  CheckLinger(now);
}

void RelayedConnection::CheckLinger(TimePoint now) {
  if (!lingers_) return;
  int on_their_way = 0;
  ioctl(client_.fd(), SIOCOUTQ, &on_their_way);
  if (on_their_way == 0 || now - lingers_since_ > kLinger) Close(Status());
}

void RelayedConnection::UnwatchServer() {
  if (!server_watched_) return;
  server_watched_ = false;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, server_fd_, nullptr);
}

void RelayedConnection::Apply(const Status& status) {
  if (closed_) return;
  if (lingers_) {  // what resets a stream has nowhere to go
    output_ = {};
    return;
  }
  if (!status.ok()) return Close(status);
  if (server_fd_ >= 0 && !output_.to_server.empty()) WriteServer();
  if (!closed_ && !output_.to_client.empty()) WriteClient();
  if (!closed_) UpdateInterest();
}

void RelayedConnection::WriteServer() {
  std::string_view rest = output_.to_server;
  if (!SendSome(server_fd_, &rest)) return Close(Status());
  KeepRest(rest.size(), &output_.to_server);
}

void RelayedConnection::WriteClient() {
  std::string_view rest = output_.to_client;
  if (client_.Write(&rest) == ClientSocket::Io::kClosed) return Close(Status());
  KeepRest(rest.size(), &output_.to_client);
  const bool rereads = server_fd_ >= 0 && !server_watched_;  // epoll does not report it
  while (rereads && !lingers_ && !closed_ && output_.to_client.empty())
    ReadServer(std::chrono::steady_clock::now());
}

void RelayedConnection::Close(const Status& reason) {
  if (closed_) return;
  closed_ = true;
  reason_ = reason;
  if (!reason.ok()) {
    filter_.SayGoodbye(reason);
    std::string_view rest = output_.to_client;
    client_.Write(&rest);
  }
  client_.Shutdown();
}

void RelayedConnection::UpdateInterest() {
  const bool writes = !output_.to_client.empty() || client_.wants_write();
  const bool reads = output_.to_server.empty();
  Interest(client_.fd(), Data(true), (reads ? EPOLLIN : 0U) | (writes ? EPOLLOUT : 0U),
           &client_interest_);
  if (!server_watched_) return;
  Interest(server_fd_, Data(false),
           (output_.to_client.empty() ? EPOLLIN : 0U) | (output_.to_server.empty() ? 0U : EPOLLOUT),
           &server_interest_);
}

void RelayedConnection::Interest(int fd, uint64_t data, uint32_t wanted, uint32_t* current) {
  if (wanted == *current) return;
  *current = wanted;
  epoll_event event{.events = wanted, .data = {.u64 = data}};
  PS_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) == 0) << std::strerror(errno);
}

}  // namespace polysketch
