// ServiceContext: the parts of a server that all of its calls use.
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

// Outlives the server.
struct ServiceContext {
  ConnectionTable* connections = nullptr;
  Metrics* metrics = nullptr;
  // Writes to streams, for the engine thread; one thread. Shared with the engine's callbacks, the
  // last of which may run after its call and the server are destroyed.
  std::shared_ptr<Executor> writers;
  Executor* tokenizers = nullptr;  // parses and tokenizes large requests, for gRPC's threads
  // Waits for files and the network: sessions, snapshots, migrated completions. One thread.
  std::shared_ptr<Executor> stores;
  std::chrono::milliseconds stall_deadline = std::chrono::seconds(30);
  std::chrono::milliseconds migration_ttl = std::chrono::minutes(10);  // of migrated completions
  size_t stream_buffer = 64;
  std::atomic<const ServedModel*> model{nullptr};  // null while loading
  std::atomic<bool> draining{false};
  std::atomic<bool> stuck{false};  // StuckWatch

  // Whether health is SERVING.
  bool ready() const { return model.load() != nullptr && !draining.load() && !stuck.load(); }
};

// A request larger than this is parsed and tokenized on ServiceContext::tokenizers: 16 KiB of text
// take about 5 ms.
inline constexpr size_t kInlineRequestBytes = 16 << 10;

}  // namespace polysketch
