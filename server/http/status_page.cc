#include "server/http/status_page.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bounded_json.h"
#include "polysketch_build_info.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/http/session_paths.h"
#include "server/http/web_files.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const prometheus::ClientMetric& metric, prometheus::MetricType type) {
  Json json;
  Json labels = Json::object();
  for (const auto& label : metric.label) labels[label.name] = label.value;
  json["labels"] = std::move(labels);
  if (type == prometheus::MetricType::Histogram) {
    json["sum"] = metric.histogram.sample_sum;
    json["count"] = metric.histogram.sample_count;
    Json buckets = Json::array();  // [upper bound, cumulative count]; the infinite bound is null
    for (const auto& bucket : metric.histogram.bucket) {
      buckets.push_back({bucket.upper_bound, bucket.cumulative_count});
    }
    json["buckets"] = std::move(buckets);
  } else {
    json["value"] =
        type == prometheus::MetricType::Gauge ? metric.gauge.value : metric.counter.value;
  }
  return json;
}

// The file of the page at `path`; null: none.
const WebFile* FindWebFile(std::string_view path) {
  if (path == "/favicon.ico") path = "/favicon.svg";  // browsers ask for it whatever the page says
  const auto files = WebFiles();
  const auto found = std::ranges::find(files, path, &WebFile::path);
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

bool StatusPage::IsPagePath(std::string_view path) {
  return path.starts_with("/api/") || FindWebFile(path) != nullptr;
}

bool StatusPage::IsHealthPath(std::string_view path) {
  return path == "/healthz" || path == "/readyz" || path == "/health";
}

bool StatusPage::IsOpen(const HttpRequest& request) {
  return IsHealthPath(request.path) ||
         (request.method == "GET" && FindWebFile(request.path) != nullptr);
}

std::string StatusPage::StatusJson() const {
  Json json;
  json["ready"] = Ready();
  if (const ServedModel* model = service_->model.load()) {
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    options.always_print_primitive_fields = true;
    std::string text;
    if (google::protobuf::util::MessageToJsonString(model->description, &text, options).ok()) {
      json["model"] = *ParseJson<Json>(text);
    }
    json["state_store"] = model->sessions->options().store != nullptr;
  }
  Json metrics = Json::object();
  for (const prometheus::MetricFamily& family : collect_()) {
    Json series = Json::array();
    for (const auto& metric : family.metric) series.push_back(ToJson(metric, family.type));
    metrics[family.name] = std::move(series);
  }
  json["metrics"] = std::move(metrics);
  return JsonText(json);
}

void StatusPage::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const std::string& path = exchange->request().path;
  if (HandleSessions(*router_, exchange)) return;
  const WebFile* const file = FindWebFile(path);
  if (file == nullptr && !IsHealthPath(path) && path != "/version" && path != "/api/status")
    return ReplyNoSuchPath(exchange.get());
  if (!CheckMethod(exchange.get(), "GET")) return;
  if (path == "/healthz") {
    return service_->stuck.load() ? exchange->Reply(503, "text/plain", "a thread is stuck\n")
                                  : exchange->Reply(200, "text/plain", "ok\n");
  }
  if (path == "/readyz" || path == "/health") {
    return Ready() ? exchange->Reply(200, "text/plain", "ready\n")
                   : exchange->Reply(503, "text/plain", "not ready\n");
  }
  if (path == "/version")
    return exchange->Reply(200, kJsonType, "{\"version\": \"" POLYSKETCH_VERSION "\"}\n");
  if (path == "/api/status") return exchange->Reply(200, kJsonType, StatusJson());
  exchange->Reply(200, file->content_type, std::string(file->content));
}

}  // namespace polysketch
