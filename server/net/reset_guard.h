// Closes connections that have more open streams than an honest client can have. Under a flood
// gRPC's threads may only read: no handler runs that would count calls, while memory grows. The
// transports count streams (channelz); the guard's thread checks the connections that receive the
// most bytes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "server/net/connections.h"

namespace polysketch {

class ResetGuard {
 public:
  // Watches the newest gRPC server of this process, which has started. Closes a connection with
  // more than `max_streams` open streams. `table` outlives the guard.
  ResetGuard(ConnectionTable* table, int64_t max_streams);
  ~ResetGuard();
  ResetGuard(const ResetGuard&) = delete;
  ResetGuard& operator=(const ResetGuard&) = delete;

 private:
  void Loop();
  void Check(const ConnectionTable::Busy& connection);
  // Returns the number of open streams of a channelz socket; -1 for a socket that is closed.
  static int64_t OpenStreams(int64_t socket);
  void ListSockets();

  ConnectionTable* const table_;
  const int64_t max_streams_;
  const int64_t server_;
  std::unordered_map<std::string, int64_t> sockets_;  // by ConnectionKey; used by thread_ only
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace polysketch
