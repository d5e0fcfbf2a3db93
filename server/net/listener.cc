#include "server/net/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <regex>
#include <utility>

#include "base/check.h"
#include "base/logging.h"

namespace polysketch {
namespace {

// Ids of connections start at 1 and stay below these.
constexpr uint64_t kListenEvent = ~uint64_t{0};
constexpr uint64_t kStopEvent = kListenEvent - 1;

// Bytes of a connection's input in the kernel. Requests are small; a larger buffer only lets a
// flood send more before it is noticed.
constexpr int kReceiveBuffer = 256 << 10;

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> SplitAddress(const std::string& address) {
  static const std::regex form(R"((?:\[([^\]]+)\]|([^:]+)):([0-9]{1,5}))");
  std::smatch match;
  if (!std::regex_match(address, match, form) || std::stoi(match[3]) > 65535) {
    return InvalidArgument("expected HOST:PORT or [IPV6]:PORT, found \"", address, "\"");
  }
  return HostPort{match[1].matched ? match[1] : match[2], match[3]};
}

// Returns a non-blocking socket that is bound and listens; -1 with errno on failure.
int ListenOn(const addrinfo& info) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  const int off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (info.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer,
             sizeof(kReceiveBuffer));  // accepted sockets inherit it
  if (bind(fd, info.ai_addr, info.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

std::string BoundAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  PS_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
      << std::strerror(errno);
  std::string key = ConnectionKey(address);
  if (address.ss_family != AF_INET6) return key;
  const size_t colon = key.rfind(':');
  return StrCat("[", key.substr(0, colon), "]", key.substr(colon));
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Bind(const std::string& address,
                                                 ConnectionTable* table) {
  PS_ASSIGN_OR_RETURN(const HostPort parts, SplitAddress(address));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &found);
      error != 0) {
    return InvalidArgument("cannot resolve \"", parts.host, "\": ", gai_strerror(error));
  }
  int fd = -1;
  for (const addrinfo* info = found; info != nullptr && fd < 0; info = info->ai_next)
    fd = ListenOn(*info);
  const int error = errno;
  freeaddrinfo(found);
  if (fd < 0) return Unavailable("cannot listen on ", address, ": ", std::strerror(error));
  return std::unique_ptr<Listener>(new Listener(fd, BoundAddress(fd), table));
}

Listener::Listener(int fd, std::string address, ConnectionTable* table)
    : listen_fd_(fd),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      stop_fd_(eventfd(0, EFD_CLOEXEC)),
      address_(std::move(address)),
      table_(table) {
  PS_CHECK(epoll_fd_ >= 0 && stop_fd_ >= 0) << std::strerror(errno);
  for (const auto& [watched, data] :
       {std::pair{listen_fd_, kListenEvent}, std::pair{stop_fd_, kStopEvent}}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = data}};
    PS_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, watched, &event) == 0) << std::strerror(errno);
  }
}

Listener::~Listener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    PS_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
    thread_.join();
  }
  close(stop_fd_);
  close(epoll_fd_);
  close(listen_fd_);
}

void Listener::Start(std::function<void(int)> handle) {
  handle_ = std::move(handle);
  thread_ = std::thread([this] { Loop(); });
}

void Listener::Loop() {
  epoll_event events[64];
  while (true) {
    const int count = epoll_wait(epoll_fd_, events, std::size(events), -1);
    PS_CHECK(count >= 0 || errno == EINTR) << std::strerror(errno);
    for (int i = 0; i < count; ++i) {
      const uint64_t data = events[i].data.u64;
      if (data == kStopEvent) return;
      if (data == kListenEvent) {
        Accept();
      } else if ((events[i].events & (EPOLLHUP | EPOLLERR)) != 0) {
        Forget(data);
      }
    }
  }
}

void Listener::Forget(ConnectionTable::Id id) {
  const int duplicate = table_->Remove(id);
  if (duplicate < 0) return;
  // close() alone would leave the descriptor in the epoll set as long as gRPC holds the same
  // socket.
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, duplicate, nullptr);
  close(duplicate);
}

void Listener::Accept() {
  while (true) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    const int fd = accept4(listen_fd_, reinterpret_cast<sockaddr*>(&peer), &size,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Register(fd, ConnectionKey(peer));
      continue;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      LogWarning("accept_failed", {{"error", std::strerror(errno)}});
      // The connection stays pending: without a pause the loop would spin until a descriptor is
      // free.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return;
  }
}

void Listener::Register(int fd, const std::string& key) {
  const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  const ConnectionTable::Id id = duplicate < 0 ? 0 : table_->Add(key, duplicate);
  if (id == 0) {
    LogWarning("connection_refused", {{"peer", key}, {"reason", "too many connections or calls"}});
    if (duplicate >= 0) close(duplicate);
    close(fd);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // The duplicate reports EPOLLHUP, which is always watched, once gRPC has shut the socket down or
  // both ends are closed.
  epoll_event event{.events = 0, .data = {.u64 = id}};
  PS_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, duplicate, &event) == 0) << std::strerror(errno);
  handle_(fd);
}

}  // namespace polysketch
