// Metrics that are read when somebody asks: gauges of the engine and the connections, and of the
// process.
#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <vector>

#include "engine/engine.h"
#include "server/connections.h"

namespace polysketch {

class ScrapeMetrics : public prometheus::Collectable {
 public:
  // Both are called at every scrape, from the HTTP server's threads. `engine` gives nullopt while
  // the model is loading.
  ScrapeMetrics(std::function<std::optional<EngineStats>()> engine,
                std::function<ConnectionTable::Stats()> connections);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<std::optional<EngineStats>()> engine_;
  const std::function<ConnectionTable::Stats()> connections_;
};

}  // namespace polysketch
