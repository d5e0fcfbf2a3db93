// What all calls of a server share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>

#include "server/metrics/metrics.h"
#include "server/net/connections.h"
#include "server/rpc/executor.h"
#include "server/rpc/served_model.h"

namespace polysketch {

class StallWatch;

// What all calls share. Outlives the server.
struct ServiceContext {
  ConnectionTable* connections = nullptr;
  Metrics* metrics = nullptr;
  // Writes to streams, off the engine thread; one thread. Shared with the engine's callbacks, the
  // last of which may come when the call that it is for, and the server, are gone.
  std::shared_ptr<Executor> writers;
  Executor* tokenizers = nullptr;  // parses and tokenizes large requests, off gRPC's pollers
  // Waits for files and the network: sessions, snapshots, stopped completions. One thread.
  std::shared_ptr<Executor> stores;
  StallWatch* stalls = nullptr;
  std::chrono::milliseconds migration_ttl = std::chrono::minutes(10);  // of stopped completions
  size_t stream_buffer = 64;
  std::atomic<const ServedModel*> model{nullptr};  // null while loading
  std::atomic<bool> draining{false};
};

// A request larger than this is parsed and tokenized on ServiceContext::tokenizers: 16 KiB of text
// take about 5 ms.
inline constexpr size_t kInlineRequestBytes = 16 << 10;

}  // namespace polysketch
