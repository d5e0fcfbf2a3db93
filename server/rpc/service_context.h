// ServiceContext: the parts of a server that all of its calls use.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "server/metrics/metrics.h"
#include "server/net/connections.h"
#include "server/net/refusals.h"
#include "server/net/request_memory.h"
#include "server/rpc/executor.h"
#include "server/rpc/served_model.h"
#include "server/rpc/tokenizer_pool.h"

namespace polysketch {

class SpanExporter;

// Outlives the server.
struct ServiceContext {
  ConnectionTable* connections = nullptr;
  Metrics* metrics = nullptr;
  Refusals* refusals = nullptr;
  RequestMemory* memory = nullptr;
  SpanExporter* spans = nullptr;     // null without --otlp-endpoint
  int64_t trace_sample_percent = 0;  // of the calls without a traceparent
  // Writes to streams, for the engine thread; one thread. Shared with the engine's callbacks, the
  // last of which may run after its call and the server are destroyed.
  std::shared_ptr<Executor> writers;
  TokenizerPool* tokenizers = nullptr;  // parses and tokenizes large requests, for gRPC's threads
  // Operations that may wait for the store, files or the network; encodes and decodes states.
  // kStoreThreads threads; clients take turns, and one leaves threads for others.
  std::shared_ptr<Executor> stores;
  // Operations on sessions that wait for nothing. One that is mistaken for such an operation
  // (SessionTable::NeedsStore) waits here, and not on a thread of gRPC.
  std::shared_ptr<Executor> sessions;
  // Compiles grammars: waits for their processes, which take seconds. One client leaves a thread
  // for others. The threads are no part of health: a slow grammar is no stuck thread.
  std::shared_ptr<Executor> grammars;
  Executor& ForSession(bool needs_store) const { return needs_store ? *stores : *sessions; }
  std::chrono::milliseconds stall_deadline = std::chrono::seconds(30);
  std::chrono::milliseconds migration_ttl = std::chrono::minutes(10);  // of migrated completions
  size_t stream_buffer = 64;
  std::atomic<const ServedModel*> model{nullptr};  // null while loading
  std::atomic<bool> draining{false};
  std::atomic<bool> stuck{false};  // StuckWatch

  // Whether health is SERVING.
  bool ready() const { return model.load() != nullptr && !draining.load() && !stuck.load(); }
};

// Of what is refused, or ends, since the server drains.
inline Status Draining() {
  return Unavailable("the server is draining").WithReason(Reason::kDraining);
}

// As many operations wait for the store at once; Redis has as many connections.
inline constexpr int kStoreThreads = 8;
inline constexpr int kSessionThreads = 2;
inline constexpr int kGrammarThreads = GrammarCompiler::kMaxCompilations;
// Limit of one response: protobuf and gRPC cannot carry 2 GiB.
inline constexpr size_t kMaxReplyBytes = size_t{1} << 30;

// A request larger than this is parsed and tokenized on ServiceContext::tokenizers: 16 KiB of text
// take about 5 ms.
inline constexpr size_t kInlineRequestBytes = 16 << 10;

}  // namespace polysketch
