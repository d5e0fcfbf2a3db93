#include "server/net/connections.h"

#include <arpa/inet.h>
#include <linux/tcp.h>  // netinet/tcp.h has an older tcp_info
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>

#include "base/logging.h"

namespace polysketch {
namespace {

constexpr double kBurstSeconds = 10;

void EraseAll(std::string* text, std::string_view part) {
  for (size_t at = text->find(part); at != std::string::npos; at = text->find(part, at))
    text->erase(at, part.size());
}

}  // namespace

std::string ConnectionKey(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  uint16_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    }
    port = ntohs(v6.sin6_port);
  }
  return StrCat(text, ":", port);
}

std::string ConnectionKey(std::string_view grpc_peer) {
  const size_t scheme = grpc_peer.find(':');
  std::string key(scheme == std::string_view::npos ? grpc_peer : grpc_peer.substr(scheme + 1));
  for (const std::string_view bracket : {"%5B", "%5D", "[", "]"}) EraseAll(&key, bracket);
  return key;
}

ConnectionTable::~ConnectionTable() {
  for (const auto& [id, connection] : connections_) close(connection.fd);
}

ConnectionTable::Id ConnectionTable::Add(const std::string& key, int fd) {
  std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(connections_.size()) >= limits_.max_connections ||
      calls_ > 2 * limits_.max_calls) {
    ++refused_;
    return 0;
  }
  const Id id = next_id_++;
  connections_[id] = Connection{.key = key, .fd = fd};
  ids_[key] = id;  // an older connection of the same key is closed: its Remove follows
  return id;
}

int ConnectionTable::Remove(Id id) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return -1;
  const int fd = found->second.fd;
  if (const auto by_key = ids_.find(found->second.key);
      by_key != ids_.end() && by_key->second == id) {
    ids_.erase(by_key);
  }
  connections_.erase(found);
  return fd;
}

ConnectionTable::Call ConnectionTable::BeginCall(std::string_view grpc_peer) {
  const std::string key = ConnectionKey(grpc_peer);
  std::lock_guard lock(mutex_);
  Call call;
  ++calls_;
  const bool crowded = calls_ > limits_.max_calls;
  const auto id = ids_.find(key);
  if (id == ids_.end()) {
    if (crowded) call.verdict = Verdict::kTooMany;
    return call;
  }
  call.connection = id->second;
  Connection& connection = connections_.at(id->second);
  ++connection.calls;
  // A flood of calls must not keep other connections from their first call.
  const int64_t share = limits_.max_calls / static_cast<int64_t>(connections_.size());
  if (crowded && connection.calls > std::max<int64_t>(share, 1)) call.verdict = Verdict::kTooMany;
  if (connection.calls > limits_.max_calls_per_connection)
    CloseLocked(&connection, "calls not yet freed");
  if (connection.closing) call.verdict = Verdict::kAbusive;
  return call;
}

void ConnectionTable::EndCall(const Call& call, bool aborted, TimePoint now) {
  std::lock_guard lock(mutex_);
  --calls_;
  const auto found = connections_.find(call.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  --connection.calls;
  if (!aborted) return;
  const double elapsed = std::chrono::duration<double>(now - connection.leaked).count();
  connection.resets = std::max(0.0, connection.resets - elapsed * limits_.resets_per_second) + 1;
  connection.leaked = now;
  if (connection.resets > kBurstSeconds * limits_.resets_per_second)
    CloseLocked(&connection, "aborted calls");
}

std::vector<ConnectionTable::Busy> ConnectionTable::TakeBusy(uint64_t bytes) {
  std::vector<Busy> busy;
  std::lock_guard lock(mutex_);
  for (auto& [id, connection] : connections_) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (connection.closing || getsockopt(connection.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
      continue;
    }
    if (info.tcpi_bytes_received - connection.reported_bytes < bytes) continue;
    connection.reported_bytes = info.tcpi_bytes_received;
    busy.push_back({id, connection.key});
  }
  return busy;
}

void ConnectionTable::Close(Id id, std::string_view what) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found != connections_.end()) CloseLocked(&found->second, what);
}

void ConnectionTable::CloseLocked(Connection* connection, std::string_view what) {
  if (connection->closing) return;
  connection->closing = true;
  ++abusive_;
  // The last close then resets the connection. Otherwise its client would continue to send into a
  // closed window.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  shutdown(connection->fd, SHUT_RDWR);
  // Drop the input in the kernel's buffer, which would otherwise be read and become calls. Only
  // once: a client that continues to send must not hold this thread.
  recv(connection->fd, nullptr, size_t{8} << 20, MSG_TRUNC | MSG_DONTWAIT);
  LogWarning("connection_closed",
             {{"peer", connection->key}, {"reason", StrCat("too many ", what)}});
}

ConnectionTable::Stats ConnectionTable::stats() const {
  std::lock_guard lock(mutex_);
  return {.open = static_cast<int64_t>(connections_.size()),
          .calls = calls_,
          .refused = refused_,
          .abusive = abusive_};
}

}  // namespace polysketch
