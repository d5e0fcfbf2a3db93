#include "server/http/metrics_page.h"

#include <prometheus/text_serializer.h>
#include <zlib.h>

#include <string>

#include "base/check.h"
#include "server/http/http_errors.h"

namespace polysketch {
namespace {

constexpr int kGzipWindowBits = 15 + 16;  // 16: with the header and the checksum of gzip
constexpr int kMemoryLevel = 8;           // of zlib: its default

std::string Gzip(const std::string& text) {
  z_stream stream{};
  // Level 1 makes a tenth of a page in a millisecond.
  int result = deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindowBits, kMemoryLevel,
                            Z_DEFAULT_STRATEGY);
  PS_CHECK(result == Z_OK) << "zlib: " << result;
  std::string compressed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  result = deflate(&stream, Z_FINISH);
  PS_CHECK(result == Z_STREAM_END) << "zlib: " << result;
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

}  // namespace

void HandleMetrics(HttpExchange* exchange,
                   const std::function<std::vector<prometheus::MetricFamily>()>& collect) {
  const HttpRequest& request = exchange->request();
  if (request.path != kMetricsPath) return ReplyNoSuchPath(exchange);
  if (!CheckMethod(exchange, "GET")) return;
  constexpr char kType[] = "text/plain; charset=utf-8";
  std::string text = prometheus::TextSerializer().Serialize(collect());
  if (request.Header("Accept-Encoding").find("gzip") == std::string_view::npos)
    return exchange->Reply(200, kType, std::move(text));
  exchange->Reply(200, kType, Gzip(text), {{"Content-Encoding", "gzip"}});
}

}  // namespace polysketch
