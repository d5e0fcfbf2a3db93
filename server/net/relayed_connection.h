// One connection of a Relay.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/net/client_socket.h"
#include "server/net/connections.h"
#include "server/net/frame_filter.h"

namespace polysketch {

// Used on the thread of the relay.
class RelayedConnection {
 public:
  using TimePoint = FrameFilter::TimePoint;

  // `serve`: of Relay.
  RelayedConnection(ConnectionTable::Id id, std::string key, int fd, SSL_CTX* tls,
                    const FrameLimits& limits, MessageMemory* memory,
                    const std::function<void(int)>* serve);
  ~RelayedConnection();
  RelayedConnection(const RelayedConnection&) = delete;
  RelayedConnection& operator=(const RelayedConnection&) = delete;

  ConnectionTable::Id id() const { return id_; }
  const std::string& key() const { return key_; }
  const Principal& principal() const { return filter_.principal(); }
  FrameFilter& filter() { return filter_; }
  const FrameFilter& filter() const { return filter_; }
  bool needs_handshake() const { return client_.needs_handshake(); }
  bool started() const { return server_fd_ >= 0; }
  TimePoint accepted() const { return accepted_; }
  // Whether the connection is to be removed.
  bool closed() const { return closed_; }
  // Whether gRPC has ended the connection, and last bytes are on their way to the client. Input is
  // read and dropped meanwhile.
  bool lingers() const { return lingers_ && !closed_; }
  // Why the relay closed it; OK if the client or gRPC did.
  const Status& reason() const { return reason_; }

  // Watches the client's socket in the epoll set.
  void Watch(int epoll_fd);
  // Each moves the bytes that are ready, at most 32 KiB.
  void OnClient(uint32_t events, TimePoint now);
  void OnServer(uint32_t events, TimePoint now);
  // Closes the connection if `status` is an error; writes what the filter has appended.
  void Apply(const Status& status);
  // Closes a connection that lingers once the client's machine has all bytes, or after two seconds.
  void CheckLinger(TimePoint now);
  void Close(const Status& reason);

 private:
  void ReadClient(TimePoint now);
  void ReadServer(TimePoint now);
  void WriteClient();
  void WriteServer();
  // Opens the server's side.
  void Start();
  // After the last byte of gRPC.
  void Linger(TimePoint now);
  // Lets epoll report the server's side no more.
  void UnwatchServer();
  // Watches for what can be done next.
  void UpdateInterest();
  void Interest(int fd, uint64_t data, uint32_t wanted, uint32_t* current);
  // Identifies the sides in epoll's data.
  uint64_t Data(bool client) const { return id_ * 2 + (client ? 1 : 0); }

  const ConnectionTable::Id id_;
  const std::string key_;
  const std::function<void(int)>* const serve_;
  const TimePoint accepted_;
  ClientSocket client_;
  int server_fd_ = -1;
  FrameFilter::Output output_;
  FrameFilter filter_;
  int epoll_fd_ = -1;
  uint32_t client_interest_ = 0;
  uint32_t server_interest_ = 0;
  bool server_watched_ = false;
  bool lingers_ = false;
  TimePoint lingers_since_{};
  bool closed_ = false;
  Status reason_;
};

}  // namespace polysketch
