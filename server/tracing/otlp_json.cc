#include "server/tracing/otlp_json.h"

#include <nlohmann/json.hpp>

#include "polysketch_build_info.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStatusError = 2;

// 64-bit integers are strings in the JSON form of protobuf.
Json ToJson(const AttributeValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {{"stringValue", *text}};
  if (const auto* number = std::get_if<int64_t>(&value))
    return {{"intValue", std::to_string(*number)}};
  Json values = Json::array();
  for (const std::string& text : std::get<std::vector<std::string>>(value))
    values.push_back({{"stringValue", text}});
  return {{"arrayValue", {{"values", std::move(values)}}}};
}

Json ToJson(const Attributes& attributes) {
  Json list = Json::array();
  for (const auto& [key, value] : attributes)
    list.push_back({{"key", key}, {"value", ToJson(value)}});
  return list;
}

std::string Nanoseconds(std::chrono::system_clock::time_point time) {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

Json ToJson(const Span& span) {
  Json json;
  json["traceId"] = span.trace_id;
  json["spanId"] = span.span_id;
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = Nanoseconds(span.start);
  json["endTimeUnixNano"] = Nanoseconds(span.end);
  json["attributes"] = ToJson(span.attributes);
  if (!span.events.empty()) {
    Json& events = json["events"] = Json::array();
    for (const SpanEvent& event : span.events)
      events.push_back({{"timeUnixNano", Nanoseconds(event.time)}, {"name", event.name}});
  }
  if (!span.error.empty()) json["status"] = {{"code", kStatusError}, {"message", span.error}};
  return json;
}

}  // namespace

std::string OtlpJson(const Attributes& resource, std::span<const Span> spans) {
  Json list = Json::array();
  for (const Span& span : spans) list.push_back(ToJson(span));
  Json scope = {{"scope", {{"name", "polysketch-server"}, {"version", POLYSKETCH_VERSION}}},
                {"spans", std::move(list)}};
  Json of_resource = {{"resource", {{"attributes", ToJson(resource)}}},
                      {"scopeSpans", Json::array({std::move(scope)})}};
  const Json body = {{"resourceSpans", Json::array({std::move(of_resource)})}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace polysketch
