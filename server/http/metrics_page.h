// The page /metrics in the text format of Prometheus: that of --metrics-listen, and of
// --http-listen.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <prometheus/metric_family.h>

#include "server/http/http_exchange.h"

namespace polysketch {

inline constexpr std::string_view kMetricsPath = "/metrics";

// Answers any request with what `collect` returns. Compresses the page if the client accepts gzip.
void HandleMetrics(HttpExchange* exchange,
                   const std::function<std::vector<prometheus::MetricFamily>()>& collect);

}  // namespace polysketch
