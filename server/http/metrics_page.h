// The page of --metrics-listen: /metrics in the text format of Prometheus.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <prometheus/metric_family.h>

#include "server/http/http_exchange.h"

namespace polysketch {

class MetricsPage {
 public:
  using Collect = std::function<std::vector<prometheus::MetricFamily>()>;

  explicit MetricsPage(Collect collect) : collect_(std::move(collect)) {}

  // Answers any request. Compresses the page if the client accepts gzip.
  void Handle(HttpExchange* exchange) const;

 private:
  const Collect collect_;
};

}  // namespace polysketch
