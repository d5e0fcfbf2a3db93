#include "server/net/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <regex>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/start_thread.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

// Bytes of a connection's input in the kernel. Requests are small; a larger buffer only lets a
// flood send more before it is noticed.
constexpr int kReceiveBuffer = 256 << 10;

constexpr std::string_view kUnixScheme = "unix:";

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> SplitAddress(const std::string& address) {
  static const std::regex form(R"((?:\[([^\]]+)\]|([^:]+)):([0-9]{1,5}))");
  std::smatch match;
  if (!std::regex_match(address, match, form) || std::stoi(match[3]) > 65535) {
    return InvalidArgument("expected HOST:PORT, [IPV6]:PORT or unix:PATH, found \"", address, "\"");
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

Result<int> ListenOnTcp(const std::string& address) {
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
  return fd;
}

// Whether no process listens on a unix socket, which an earlier one has left.
bool IsStale(const sockaddr_un& name) {
  struct stat info {};
  if (lstat(name.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool refused = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 &&
                       errno == ECONNREFUSED;
  close(fd);
  return refused;
}

Result<int> ListenOnUnix(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return InvalidArgument("expected unix:PATH with a path of 1 to ", sizeof(name.sun_path) - 1,
                           " bytes, found ", path.size(), " bytes");
  }
  path.copy(name.sun_path, path.size());
  if (IsStale(name)) unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 &&
      chmod(path.c_str(), 0660) == 0 && listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  return Unavailable("cannot listen on unix:", path, ": ", std::strerror(error));
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Bind(const std::string& address) {
  if (address.starts_with(kUnixScheme)) {
    PS_ASSIGN_OR_RETURN(const int fd, ListenOnUnix(address.substr(kUnixScheme.size())));
    return std::unique_ptr<Listener>(new Listener(fd, address));
  }
  PS_ASSIGN_OR_RETURN(const int fd, ListenOnTcp(address));
  return std::unique_ptr<Listener>(new Listener(fd, BoundAddress(fd)));
}

Listener::Listener(int fd, std::string address)
    : listen_fd_(fd), stop_fd_(eventfd(0, EFD_CLOEXEC)), address_(std::move(address)) {
  PS_CHECK(stop_fd_ >= 0) << std::strerror(errno);
}

Listener::~Listener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    PS_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
    thread_.join();
  }
  if (address_.starts_with(kUnixScheme)) unlink(address_.c_str() + kUnixScheme.size());
  close(stop_fd_);
  close(listen_fd_);
}

void Listener::Start(std::function<void(int, const std::string&)> handle) {
  handle_ = std::move(handle);
  thread_ = StartThread([this] { Loop(); });
}

void Listener::Loop() {
  pollfd watched[] = {{.fd = listen_fd_, .events = POLLIN, .revents = 0},
                      {.fd = stop_fd_, .events = POLLIN, .revents = 0}};
  while (true) {
    PS_CHECK(poll(watched, std::size(watched), -1) >= 0 || errno == EINTR) << std::strerror(errno);
    if (watched[1].revents != 0) return;
    if (watched[0].revents != 0) Accept();
  }
}

void Listener::Accept() {
  while (true) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    const int fd = accept4(listen_fd_, reinterpret_cast<sockaddr*>(&peer), &size,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      handle_(fd, peer.ss_family == AF_UNIX ? StrCat(kUnixScheme, ++unix_connections_)
                                            : ConnectionKey(peer));
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

}  // namespace polysketch
