// Relays bytes between the sockets of clients and gRPC: one thread reads from each client,
// terminates TLS, passes the frames through a FrameFilter, and writes to a socket of gRPC. gRPC
// gets a connection when the client has sent the preface of HTTP/2.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/credentials/certificates.h"
#include "server/net/connections.h"
#include "server/net/frame_filter.h"
#include "server/net/request_memory.h"

namespace polysketch {

struct RelayOptions {
  FrameLimits frames;
  std::chrono::milliseconds handshake_timeout{10'000};  // for TLS and the preface of HTTP/2
  const CertificateStore* certificates = nullptr;       // null without TLS; outlives the relay
};

class RelayedConnection;

class Relay final : public MessageMemory {
 public:
  // `serve` owns the descriptor that it receives, the server's side of a connection, whose peer's
  // name is that of PeerName. It runs on the relay's thread. `table` and `memory` outlive the
  // relay.
  Relay(const RelayOptions& options, ConnectionTable* table, RequestMemory* memory,
        std::function<void(int fd)> serve);
  // Closes all connections.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Owns `fd`, which is non-blocking; closes it if the table refuses the connection. `key`: of
  // ConnectionTable. Thread-safe.
  void Add(int fd, const std::string& key);

 private:
  using TimePoint = FrameFilter::TimePoint;
  void Loop();
  void AddWaiting();
  // Milliseconds until the next check of connections.
  int Timeout() const;
  void CheckLingering(TimePoint now);
  void CheckDeadlines(TimePoint now);
  // Removes the connections of closed_.
  void Sweep();
  void Wake();

  bool Charge(const FrameFilter& filter, int64_t bytes) override;
  void Release(const FrameFilter& filter, int64_t bytes) override;
  // Resets a stream of the peer that holds the most. Returns false if that is `peer`, or would be
  // with `bytes` more.
  bool MakeRoom(const Principal& principal, int64_t bytes);

  const RelayOptions options_;
  const std::chrono::milliseconds check_period_;  // of deadlines
  ConnectionTable* const table_;
  RequestMemory* const memory_;
  const std::function<void(int)> serve_;
  const int epoll_fd_;
  const int wake_fd_;  // eventfd
  std::unordered_map<ConnectionTable::Id, std::unique_ptr<RelayedConnection>> connections_;
  std::unordered_set<ConnectionTable::Id> lingering_;
  std::vector<ConnectionTable::Id> closed_;

  std::mutex mutex_;
  // Guarded by mutex_:
  bool stop_ = false;
  std::vector<std::unique_ptr<RelayedConnection>> waiting_;
  std::thread thread_;
};

}  // namespace polysketch
