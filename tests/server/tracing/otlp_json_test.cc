#include "server/tracing/otlp_json.h"

#include <gtest/gtest.h>

#include "polysketch_build_info.h"

namespace polysketch {
namespace {

std::chrono::system_clock::time_point At(int64_t nanoseconds) {
  return std::chrono::system_clock::time_point(std::chrono::nanoseconds(nanoseconds));
}

TEST(OtlpJson, IsTheFormOfTheProtocol) {
  const Span root{.trace_id = "0af7651916cd43dd8448eb211c80319c",
                  .span_id = "00f067aa0ba902b7",
                  .parent_id = "",
                  .name = "polysketch.v1.PolySketch/Complete",
                  .kind = SpanKind::kServer,
                  .start = At(1'544'712'660'000'000'001),
                  .end = At(1'544'712'661'000'000'002),
                  .attributes = {{"rpc.system.name", "grpc"},
                                 {"tokens", int64_t{9'007'199'254'740'993}},
                                 {"reasons", std::vector<std::string>{"stop", "length"}}},
                  .events = {{"first_token", At(1'544'712'660'500'000'000)}},
                  .error = "INTERNAL"};
  const Span child{.trace_id = root.trace_id,
                   .span_id = "b7ad6b7169203331",
                   .parent_id = root.span_id,
                   .name = "queue",
                   .start = root.start,
                   .end = root.end};
  const std::vector<Span> spans = {root, child};
  const std::string expected =
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":)"
      R"({"stringValue":"polysketch-server"}}]},"scopeSpans":[{"scope":{"name":)"
      R"("polysketch-server","version":")" POLYSKETCH_VERSION
      R"("},"spans":[{"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"00f067aa0ba902b7",)"
      R"("name":"polysketch.v1.PolySketch/Complete","kind":2,)"
      R"("startTimeUnixNano":"1544712660000000001","endTimeUnixNano":"1544712661000000002",)"
      R"("attributes":[{"key":"rpc.system.name","value":{"stringValue":"grpc"}},)"
      R"({"key":"tokens","value":{"intValue":"9007199254740993"}},)"
      R"({"key":"reasons","value":{"arrayValue":{"values":[{"stringValue":"stop"},)"
      R"({"stringValue":"length"}]}}}],)"
      R"("events":[{"timeUnixNano":"1544712660500000000","name":"first_token"}],)"
      R"("status":{"code":2,"message":"INTERNAL"}},)"
      R"({"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331",)"
      R"("parentSpanId":"00f067aa0ba902b7","name":"queue","kind":1,)"
      R"("startTimeUnixNano":"1544712660000000001","endTimeUnixNano":"1544712661000000002",)"
      R"("attributes":[]}]}]}]})";
  EXPECT_EQ(OtlpJson({{"service.name", "polysketch-server"}}, spans), expected);
}

TEST(OtlpJson, BytesThatAreNotUtf8AreReplaced) {
  std::vector<Span> spans(1);
  spans[0].name =
      "a\xff"
      "b";
  EXPECT_NE(OtlpJson({}, spans).find("a\xef\xbf\xbd"
                                     "b"),
            std::string::npos);
}

}  // namespace
}  // namespace polysketch
