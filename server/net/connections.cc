#include "server/net/connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <tuple>

#include "base/log_limit.h"
#include "base/logging.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

constexpr double kBurstSeconds = 10;
constexpr int64_t kMaxClosing = 64;

}  // namespace

ConnectionTable::Id ConnectionTable::Add(const std::string& key, int fd, TimePoint now) {
  const Principal peer = PrincipalOfKey(key);
  std::lock_guard lock(mutex_);
  const bool full = static_cast<int64_t>(connections_.size()) >= limits_.max_connections;
  const bool floods =
      unfreed_.total() > 2 * limits_.max_calls && 2 * unfreed_.Of(peer).part > unfreed_.total();
  if (floods || ClosesTooFast(peer, now) || (full && !CloseOneFor(peer))) {
    ++refused_;
    return 0;
  }
  const Id id = next_id_++;
  connections_.emplace(id,
                       Connection{.key = key,
                                  .principal = peer,
                                  .fd = fd,
                                  .resets = TokenBucket(limits_.resets_per_second,
                                                        kBurstSeconds * limits_.resets_per_second),
                                  .active = now});
  open_.Add(peer, 1);
  present_.Add(peer, 1);
  ids_[key] = id;  // an older connection of the same key is closed: its Remove follows
  return id;
}

bool ConnectionTable::CloseOneFor(const Principal& newcomer) {
  Shares open;
  for (const auto& [id, connection] : connections_)
    if (!connection.closing) open.Add(connection.principal, 1);
  // Those that are closing leave soon. A few more than max_connections are open meanwhile.
  if (open.total() < limits_.max_connections)
    return std::ssize(connections_) - open.total() <= kMaxClosing;
  const auto rank = [&open](const Connection& one) {
    const Shares::Held held = open.Of(one.principal);
    return std::tuple(-held.principal, -held.part, one.calls > 0, one.active);
  };
  Connection* victim = nullptr;
  for (auto& [id, connection] : connections_) {
    if (connection.closing || !open.HoldsMore(connection.principal, newcomer, 1)) continue;
    if (victim == nullptr || rank(connection) < rank(*victim)) victim = &connection;
  }
  if (victim == nullptr) return false;
  // Calls of a client end for another's only if that client has more than half of all connections.
  if (victim->calls > 0 && 2 * open.Of(victim->principal).principal <= limits_.max_connections)
    return false;
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
  open_.Remove(found->second.principal, 1);
  present_.Remove(found->second.principal, 1);
  connections_.erase(found);
}

bool ConnectionTable::AboveShare(const Principal& principal, const Connection* connection) const {
  const int64_t share = limits_.max_calls / present_.size();
  if (calls_.Of(principal).principal <= std::max<int64_t>(share, 1)) return false;
  if (connection == nullptr) return true;
  const int64_t connections = open_.Of(connection->principal).principal;
  return connection->calls > std::max<int64_t>(share / connections, 1);
}

ConnectionTable::Call ConnectionTable::BeginCall(std::string_view grpc_peer, const Caller* caller,
                                                 TimePoint now) {
  const std::string key = ConnectionKey(grpc_peer);
  Call call;
  call.address = PrincipalOfKey(key);
  call.principal = PrincipalOf(caller, "", grpc_peer);
  std::lock_guard lock(mutex_);
  calls_.Add(call.principal, 1);
  unfreed_.Add(call.address, 1);
  present_.Add(call.principal, 1);
  const bool crowded = calls_.total() > limits_.max_calls;
  const auto id = ids_.find(key);
  if (id == ids_.end()) {
    if (crowded && AboveShare(call.principal, nullptr)) call.verdict = Verdict::kTooMany;
    return call;
  }
  call.connection = id->second;
  Connection& connection = connections_.at(id->second);
  ++connection.calls;
  connection.active = now;
  if (crowded && AboveShare(call.principal, &connection)) call.verdict = Verdict::kTooMany;
  if (connection.calls > limits_.max_calls_per_connection)
    CloseAbusive(&connection, "too many calls not yet freed", now);
  if (connection.closing) call.verdict = Verdict::kAbusive;
  return call;
}

void ConnectionTable::EndCall(const Call& call, bool aborted, TimePoint now) {
  std::lock_guard lock(mutex_);
  calls_.Remove(call.principal, 1);
  unfreed_.Remove(call.address, 1);
  present_.Remove(call.principal, 1);
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

bool ConnectionTable::ClosesTooFast(const Principal& peer, TimePoint now) const {
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
  closes_.try_emplace(connection->principal, limits_.closes_per_second, limits_.closes_in_burst)
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
          .calls = calls_.total(),
          .refused = refused_,
          .abusive = abusive_};
}

}  // namespace polysketch
