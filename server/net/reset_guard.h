// Ends connections with more streams than an honest client can have open, whatever becomes of their
// calls. Under a flood gRPC's threads may do nothing but read: no handler runs, so that nothing is
// counted there, while memory grows. The transports keep count (channelz), and this thread, which
// is none of gRPC's, looks at those that received much.
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
  // Made when the gRPC server has started: watches the newest server of this process.
  // `max_streams` begun and not ended end a connection. `table` outlives it.
  ResetGuard(ConnectionTable* table, int64_t max_streams);
  ~ResetGuard();
  ResetGuard(const ResetGuard&) = delete;
  ResetGuard& operator=(const ResetGuard&) = delete;

 private:
  void Loop();
  void Look(const ConnectionTable::Busy& connection);
  // Streams begun and not ended on a channelz socket; -1 when it is gone.
  static int64_t OpenStreams(int64_t socket);
  void ListSockets();

  ConnectionTable* const table_;
  const int64_t max_streams_;
  const int64_t server_;
  std::unordered_map<std::string, int64_t> sockets_;  // by ConnectionKey; the thread's own
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace polysketch
