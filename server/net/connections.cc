#include "server/net/connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <random>

#include "base/log_limit.h"
#include "base/logging.h"

namespace polysketch {
namespace {

constexpr double kBurstSeconds = 10;
constexpr std::string_view kPeerName = "polysketch/";  // and those parts that PeerName adds
constexpr int64_t kMaxClosing = 64;

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

std::string PeerName(uint64_t id, const std::string& key) {
  // Names belong to the network namespace. The processes of several containers in it may have the same id, and a name that can
  // be guessed can be taken.
  static const uint32_t process = std::random_device()();
  return StrCat(kPeerName, process, "/", id, "/", key);
}

std::string ClientPeer(std::string_view grpc_peer) {
  const size_t name = grpc_peer.find(kPeerName);
  if (name == std::string_view::npos) return std::string(grpc_peer);
  std::string_view rest = grpc_peer.substr(name + kPeerName.size());
  for (int part = 0; part < 2; ++part) rest.remove_prefix(rest.find('/') + 1);
  if (rest.starts_with("unix")) return std::string(rest);
  const size_t port = rest.rfind(':');
  const std::string_view host = rest.substr(0, port);
  return host.find(':') == std::string_view::npos ? StrCat("ipv4:", rest)
                                                  : StrCat("ipv6:[", host, "]", rest.substr(port));
}

std::string PeerOf(std::string_view key) {
  if (key.starts_with("unix")) return std::string(key);
  std::string host(key.substr(0, key.rfind(':')));
  host.resize(std::min(host.find('%'), host.size()));  // the interface of a link-local address
  in6_addr address{};
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return host;
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof(text));
    return text;
  }
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), uint8_t{0});
  inet_ntop(AF_INET6, &address, text, sizeof(text));
  return text;
}

std::string HostOf(std::string_view grpc_peer) {
  return grpc_peer.starts_with("unix") ? "unix" : PeerOf(ConnectionKey(grpc_peer));
}

ConnectionTable::Id ConnectionTable::Add(const std::string& key, int fd, TimePoint now) {
  const std::string peer = PeerOf(key);
  std::lock_guard lock(mutex_);
  const bool full = static_cast<int64_t>(connections_.size()) >= limits_.max_connections;
  const auto known = peers_.find(peer);
  const bool floods =
      known != peers_.end() && calls_ > 2 * limits_.max_calls && 2 * known->second.calls > calls_;
  if (floods || ClosesTooFast(peer, now) || (full && !CloseOneFor(peer))) {
    ++refused_;
    return 0;
  }
  const Id id = next_id_++;
  connections_.emplace(id,
                       Connection{.key = key,
                                  .peer = peer,
                                  .fd = fd,
                                  .resets = TokenBucket(limits_.resets_per_second,
                                                        kBurstSeconds * limits_.resets_per_second),
                                  .active = now});
  ++peers_[peer].connections;
  ids_[key] = id;  // an older connection of the same key is closed: its Remove follows
  return id;
}

bool ConnectionTable::CloseOneFor(const std::string& newcomer) {
  std::unordered_map<std::string, int64_t> open;  // by peer
  int64_t closing = 0;
  for (const auto& [id, connection] : connections_) {
    connection.closing ? ++closing : ++open[connection.peer];
  }
  // Those that are closing leave soon. A few more than max_connections are open meanwhile.
  if (static_cast<int64_t>(connections_.size()) - closing < limits_.max_connections)
    return closing <= kMaxClosing;
  const int64_t own = open[newcomer];
  const auto most = std::max_element(
      open.begin(), open.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (own + 1 >= most->second) return false;
  Connection* victim = nullptr;
  for (auto& [id, connection] : connections_) {
    if (connection.closing || connection.peer != most->first) continue;
    const auto rank = [](const Connection& c) { return std::pair(c.calls > 0, c.active); };
    if (victim == nullptr || rank(connection) < rank(*victim)) victim = &connection;
  }
  // Calls of a peer end for another's only if that peer has more than half of all connections.
  if (victim->calls > 0 && 2 * most->second <= limits_.max_connections) return false;
  ++refused_;
  CloseLocked(victim, "its client has the most connections, and another needs one");
  return true;
}

void ConnectionTable::Remove(Id id) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (const auto by_key = ids_.find(found->second.key);
      by_key != ids_.end() && by_key->second == id) {
    ids_.erase(by_key);
  }
  Release(found->second.peer, &Peer::connections);
  connections_.erase(found);
}

void ConnectionTable::Release(const std::string& peer, int64_t Peer::*member) {
  const auto found = peers_.find(peer);
  --(found->second.*member);
  if (found->second.connections == 0 && found->second.calls == 0) peers_.erase(found);
}

bool ConnectionTable::AboveShare(const Peer& peer, const Connection* connection) const {
  const int64_t share = limits_.max_calls / static_cast<int64_t>(peers_.size());
  if (peer.calls <= std::max<int64_t>(share, 1)) return false;
  return connection == nullptr ||
         connection->calls > std::max<int64_t>(share / peer.connections, 1);
}

ConnectionTable::Call ConnectionTable::BeginCall(std::string_view grpc_peer, TimePoint now) {
  const std::string key = ConnectionKey(grpc_peer);
  Call call;
  call.peer = PeerOf(key);
  std::lock_guard lock(mutex_);
  ++calls_;
  Peer& peer = peers_[call.peer];
  ++peer.calls;
  const bool crowded = calls_ > limits_.max_calls;
  const auto id = ids_.find(key);
  if (id == ids_.end()) {
    if (crowded && AboveShare(peer, nullptr)) call.verdict = Verdict::kTooMany;
    return call;
  }
  call.connection = id->second;
  Connection& connection = connections_.at(id->second);
  ++connection.calls;
  connection.active = now;
  if (crowded && AboveShare(peer, &connection)) call.verdict = Verdict::kTooMany;
  if (connection.calls > limits_.max_calls_per_connection)
    CloseAbusive(&connection, "too many calls not yet freed", now);
  if (connection.closing) call.verdict = Verdict::kAbusive;
  return call;
}

void ConnectionTable::EndCall(const Call& call, bool aborted, TimePoint now) {
  std::lock_guard lock(mutex_);
  --calls_;
  Release(call.peer, &Peer::calls);
  const auto found = connections_.find(call.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  --connection.calls;
  connection.active = now;
  if (aborted && !connection.resets.Add(1, now))
    CloseAbusive(&connection, "too many aborted calls", now);
}

void ConnectionTable::Close(Id id, std::string_view reason, TimePoint now) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found != connections_.end()) CloseAbusive(&found->second, reason, now);
}

bool ConnectionTable::ClosesTooFast(const std::string& peer, TimePoint now) const {
  const auto found = closes_.find(peer);
  return found != closes_.end() && !found->second.Fits(now);
}

void ConnectionTable::CloseAbusive(Connection* connection, std::string_view reason, TimePoint now) {
  if (connection->closing) return;
  ++abusive_;
  if (closes_.size() >= most_closes_) {
    std::erase_if(closes_, [now](const auto& entry) { return entry.second.Level(now) == 0; });
    most_closes_ = std::max<size_t>(64, 2 * closes_.size());
  }
  closes_.try_emplace(connection->peer, limits_.closes_per_second, limits_.closes_in_burst)
      .first->second.Add(1, now);
  CloseLocked(connection, reason);
}

void ConnectionTable::CloseLocked(Connection* connection, std::string_view reason) {
  connection->closing = true;
  // The last close then resets the connection. Otherwise its client would continue to send into a
  // closed window.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  shutdown(connection->fd, SHUT_RDWR);
  // Drop the input in the kernel's buffer, which would otherwise be read and become calls. Only
  // once: a client that continues to send must not hold this thread.
  recv(connection->fd, nullptr, size_t{8} << 20, MSG_TRUNC | MSG_DONTWAIT);
  static LogLimit limit("closed_connections_not_logged", 1);
  if (limit.Allow())
    LogWarning("connection_closed", {{"peer", connection->key}, {"reason", reason}});
}

ConnectionTable::Stats ConnectionTable::stats() const {
  std::lock_guard lock(mutex_);
  return {.open = static_cast<int64_t>(connections_.size()),
          .calls = calls_,
          .refused = refused_,
          .abusive = abusive_};
}

}  // namespace polysketch
