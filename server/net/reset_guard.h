// Closes connections that have more open streams than an honest client can have. Under a flood
// gRPC's threads may only read: no handler runs and counts calls, while memory grows. The transports
// count streams (channelz); a thread of our own checks the connections that receive most.
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
  // Watches the newest gRPC server of this process, which has started. More than `max_streams`
  // streams started and not ended close a connection. `table` outlives the guard.
  ResetGuard(ConnectionTable* table, int64_t max_streams);
  ~ResetGuard();
  ResetGuard(const ResetGuard&) = delete;
  ResetGuard& operator=(const ResetGuard&) = delete;

 private:
  void Loop();
  void Check(const ConnectionTable::Busy& connection);
  // Streams started and not ended on a channelz socket; -1 for a socket that is closed.
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
