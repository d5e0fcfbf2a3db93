// Open connections and the calls on them, which gRPC 1.51 does not bound.
//
// A client that opens streams and resets them at once (HTTP/2 rapid reset, CVE-2023-44487) never
// has more than max-concurrent-streams streams open for HTTP/2. The server holds a call of about 12
// KB for each stream, and frees calls more slowly than they arrive: without a bound gRPC 1.51 grew
// by 250 MB a second. Two rules close such a connection:
//   - it has more calls not yet freed than an honest client can have (max_calls_per_connection);
//     this bounds memory;
//   - it aborts more calls than a token bucket allows; this bounds wasted work when the server
//     frees calls as fast as they arrive.
// gRPC frees the memory of a closed connection later, so that a client which connects again at once
// would grow the server although each of its connections is closed in time. A third rule bounds
// that: a client whose connections are closed faster than a token bucket allows gets no new one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/shares.h"
#include "server/net/token_bucket.h"

namespace polysketch {

class Caller;

struct ConnectionLimits {
  int64_t max_connections = 256;           // of them all; a full table favours peers that have few
  int64_t max_calls = 1024;                // over all connections; shared among peers above it
  int64_t max_calls_per_connection = 256;  // not yet freed, including aborted calls
  double resets_per_second = 100;          // of aborted calls, sustained; ten times that in a burst
  double closes_per_second = 10;           // of a peer's connections that a rule closes, sustained
  double closes_in_burst = 32;             // of a peer's connections
};

// Thread-safe.
class ConnectionTable {
 public:
  using Id = uint64_t;
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit ConnectionTable(const ConnectionLimits& limits) : limits_(limits) {}
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // The caller owns `fd`, the connection's socket, through which the table can close the
  // connection. When max_connections are open, the table closes one of the peer that has the most,
  // preferably one without calls, if the newcomer's peer has fewer. Returns 0 if it cannot, or when
  // more than twice max_calls are not yet freed and its peer has more than half of them: the client
  // that caused them must not come back first. Returns 0 too for a peer whose connections the rules
  // above close faster than closes_per_second.
  Id Add(const std::string& key, int fd, TimePoint now = std::chrono::steady_clock::now());
  // Called before `fd` is closed.
  void Remove(Id id);

  enum class Verdict {
    kAccepted,
    kTooMany,  // above max_calls, and its peer has more than its share: refuse the call
    kAbusive,  // its connection has been closed: drop the call
  };
  struct Call {
    Verdict verdict = Verdict::kAccepted;
    Id connection = 0;         // 0: not a connection of this table
    Principal address = {};    // of the connection
    Principal principal = {};  // that the call counts for
  };
  // BeginCall and EndCall are called for every call of any method, whatever the verdict.
  //
  // Above max_calls each of n peers gets max_calls / n calls. A peer's calls beyond its share are
  // refused, except on a connection that has less than its part of the share, or none: calls of
  // one connection do not keep another one of the same peer from its first call.
  //
  // `caller`: null without API keys.
  Call BeginCall(std::string_view grpc_peer, const Caller* caller = nullptr,
                 TimePoint now = std::chrono::steady_clock::now());
  void EndCall(const Call& call, bool aborted, TimePoint now = std::chrono::steady_clock::now());

  // Closes a connection as the rules above do. The log has the reason.
  void Close(Id id, std::string_view reason, TimePoint now = std::chrono::steady_clock::now());

  struct Stats {
    int64_t open = 0;
    int64_t calls = 0;
    uint64_t refused = 0;  // connections that Add refused, or closed for another peer's
    uint64_t abusive = 0;  // connections closed by a rule above
  };
  Stats stats() const;

 private:
  struct Connection {
    std::string key;
    Principal principal;
    int fd = -1;
    int64_t calls = 0;
    TokenBucket resets;
    TimePoint active{};  // when a call last began or ended
    bool closing = false;
  };
  // Whether one more call than max_calls is refused. `connection`: null if it is not of this table.
  bool AboveShare(const Principal& principal, const Connection* connection) const;
  // `connection`: not closing yet.
  void CloseLocked(Connection* connection, std::string_view reason);
  // Closes a connection by a rule, which counts against its peer's new ones. Does nothing to one
  // that is closing already.
  void CloseAbusive(Connection* connection, std::string_view reason, TimePoint now);
  bool ClosesTooFast(const Principal& peer, TimePoint now) const;
  // Makes room for a connection of the peer `newcomer`. Returns whether it did.
  bool CloseOneFor(const Principal& newcomer);

  const ConnectionLimits limits_;
  mutable std::mutex mutex_;  // guards everything below
  std::unordered_map<Id, Connection> connections_;
  std::unordered_map<std::string, Id> ids_;
  Id next_id_ = 1;
  Shares open_;     // connections
  Shares calls_;    // not yet freed
  Shares unfreed_;  // the same, by address
  Shares present_;  // the sum of open_ and calls_, for the number of principals
  std::map<Principal, TokenBucket> closes_;  // by address; those that have not leaked
  size_t most_closes_ = 64;                  // entries until those that have are erased
  uint64_t refused_ = 0;
  uint64_t abusive_ = 0;
};

}  // namespace polysketch
