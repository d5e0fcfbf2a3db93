#include "server/http/metrics_page.h"

#include <prometheus/text_serializer.h>
#include <zlib.h>

#include <string>

#include "server/convert/deflate.h"
#include "server/http/http_errors.h"

namespace polysketch {

void HandleMetrics(HttpExchange* exchange,
                   const std::function<std::vector<prometheus::MetricFamily>()>& collect) {
  const HttpRequest& request = exchange->request();
  if (request.path != kMetricsPath) return ReplyNoSuchPath(exchange);
  if (!CheckMethod(exchange, "GET")) return;
  constexpr char kType[] = "text/plain; charset=utf-8";
  std::string text = prometheus::TextSerializer().Serialize(collect());
  if (request.Header("Accept-Encoding").find("gzip") == std::string_view::npos)
    return exchange->Reply(200, kType, std::move(text));
  // Level 1 makes a tenth of a page in a millisecond.
  exchange->Reply(200, kType, Deflated(text, Z_BEST_SPEED, /*gzip=*/true),
                  {{"Content-Encoding", "gzip"}});
}

}  // namespace polysketch
