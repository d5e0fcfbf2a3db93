// The page /metrics in the text format of Prometheus: that of --metrics-listen, and of --http-listen.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <prometheus/metric_family.h>

#include "server/http/http_exchange.h"

namespace polysketch {

inline constexpr std::string_view kMetricsPath = "/metrics";

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
