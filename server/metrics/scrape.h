// Metrics that are computed at a scrape: of the engine, the sessions, the connections and the
// process.
#pragma once

#include <prometheus/collectable.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/session/session_table.h"
#include "server/credentials/guard.h"
#include "server/net/connections.h"
#include "server/net/refusals.h"
#include "server/net/request_memory.h"
#include "server/tracing/span_exporter.h"

namespace polysketch {

// Facts of the served model that metrics report.
struct ServedFacts {
  EngineStats engine;
  std::string model_name = {};  // of the model in the APIs over HTTP
  SessionStats sessions = {};
  PrefixCacheStats prefix_cache = {};
  int64_t stored_responses = 0;  // whose texts are kept
  int64_t response_bytes = 0;    // of the texts
  int64_t response_bytes_limit = 0;
  int64_t max_sequences = 0;
  int64_t max_queue = 0;
  int64_t weight_bytes = 0;
  int64_t state_bytes_per_sequence = 0;
};

class ScrapeMetrics : public prometheus::Collectable {
 public:
  // The functions are called at every scrape, by threads of the HTTP server. `ready` returns
  // whether health is SERVING, `served` nullopt while the model is loading.
  ScrapeMetrics(std::function<bool()> ready, std::function<std::optional<ServedFacts>()> served,
                std::function<ConnectionTable::Stats()> connections,
                std::function<RefusedCounts()> refused, std::function<Refusals::Counts()> refusals,
                std::function<RequestMemory::Stats()> memory,
                std::function<SpanExporter::Stats()> spans);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<bool()> ready_;
  const std::function<std::optional<ServedFacts>()> served_;
  const std::function<ConnectionTable::Stats()> connections_;
  const std::function<RefusedCounts()> refused_;
  const std::function<Refusals::Counts()> refusals_;
  const std::function<RequestMemory::Stats()> memory_;
  const std::function<SpanExporter::Stats()> spans_;
};

}  // namespace polysketch
