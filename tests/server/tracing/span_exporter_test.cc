#include "server/tracing/span_exporter.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/logging.h"
#include "tests/testing/collector.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

class SpanExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    unsetenv("http_proxy");
  }

  SpanExporterOptions Options(const std::string& url) const {
    return {.url = url + "/v1/traces", .interval = milliseconds(20)};
  }
  static std::vector<Span> Spans(int count, const std::string& name = "s") {
    Span span;
    span.name = name;
    return std::vector<Span>(static_cast<size_t>(count), span);
  }
  static bool Eventually(const std::function<bool()>& condition) {
    const auto end = steady_clock::now() + seconds(20);
    while (!condition() && steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(2));
    return condition();
  }
  // Names of all spans that the collector has.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const std::string& body : collector_.bodies()) {
      const auto request = nlohmann::json::parse(body);
      for (const auto& span : request["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
        names.push_back(span["name"]);
      }
    }
    return names;
  }

  testing::Collector collector_;
};

TEST_F(SpanExporterTest, SpansArriveInOrderInBatches) {
  SpanExporterOptions options = Options(collector_.url());
  options.batch_spans = 2;
  SpanExporter exporter(options);
  std::vector<std::string> expected;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    exporter.Add(Spans(1, name));
    expected.emplace_back(name);
  }
  EXPECT_TRUE(Eventually([&] { return exporter.stats().exported == 5; }));
  EXPECT_EQ(Names(), expected);
  EXPECT_GE(collector_.requests, 3);
  EXPECT_TRUE(collector_.head().starts_with("POST /v1/traces HTTP/1.1\r\n")) << collector_.head();
  EXPECT_NE(collector_.head().find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_EQ(exporter.stats().dropped, 0);
}

TEST_F(SpanExporterTest, AFullBufferDropsWholeCalls) {
  collector_.hangs = true;
  SpanExporterOptions options = Options(collector_.url());
  options.max_spans = 10;
  SpanExporter exporter(options);
  exporter.Add(Spans(1));
  ASSERT_TRUE(Eventually([&] { return collector_.requests == 1; }));  // the thread waits
  exporter.Add(Spans(8));
  exporter.Add(Spans(3));  // one more than fits
  EXPECT_EQ(exporter.stats().dropped, 3);
  exporter.Add(Spans(2));
  EXPECT_EQ(exporter.stats().dropped, 3);
  exporter.Add(Spans(1));
  EXPECT_EQ(exporter.stats().dropped, 4);
}

TEST_F(SpanExporterTest, ACollectorThatRefusesOrIsAwayCostsItsSpansOnly) {
  std::string away;
  {
    const testing::Collector gone;
    away = gone.url();
  }
  SpanExporter to_nowhere(Options(away));
  to_nowhere.Add(Spans(3));
  EXPECT_TRUE(Eventually([&] { return to_nowhere.stats().dropped == 3; }));

  collector_.status = 503;
  SpanExporter exporter(Options(collector_.url()));
  exporter.Add(Spans(3));
  EXPECT_TRUE(Eventually([&] { return exporter.stats().dropped == 3; }));
  collector_.status = 200;
  exporter.Add(Spans(2, "later"));
  EXPECT_TRUE(Eventually([&] { return exporter.stats().exported == 2; }));
  EXPECT_EQ(Names(), (std::vector<std::string>{"later", "later"}));
  EXPECT_EQ(exporter.stats().dropped, 3);
}

TEST_F(SpanExporterTest, ATransferEndsAtItsTimeout) {
  collector_.hangs = true;
  SpanExporterOptions options = Options(collector_.url());
  options.timeout = milliseconds(50);
  SpanExporter exporter(options);
  exporter.Add(Spans(1));
  EXPECT_TRUE(Eventually([&] { return exporter.stats().dropped == 1; }));
}

TEST_F(SpanExporterTest, StopSendsWhatWaits) {
  SpanExporterOptions options = Options(collector_.url());
  options.interval = seconds(3600);
  options.batch_spans = 4;
  SpanExporter exporter(options);
  exporter.Add(Spans(3));
  exporter.Add(Spans(3));
  exporter.Stop(steady_clock::now() + seconds(20));
  EXPECT_EQ(exporter.stats().exported, 6);
  exporter.Add(Spans(2));
  EXPECT_EQ(exporter.stats().dropped, 2);
}

TEST_F(SpanExporterTest, StopEndsATransferThatHangs) {
  collector_.hangs = true;
  SpanExporterOptions options = Options(collector_.url());
  options.timeout = seconds(3600);
  options.batch_spans = 1;
  SpanExporter exporter(options);
  exporter.Add(Spans(5));
  ASSERT_TRUE(Eventually([&] { return collector_.requests == 1; }));
  const auto start = steady_clock::now();
  exporter.Stop(start + milliseconds(100));
  // Nothing else bounds the transfer: without the deadline it takes an hour.
  EXPECT_LT(steady_clock::now() - start, seconds(20));
  EXPECT_EQ(exporter.stats().dropped, 5);
}

}  // namespace
}  // namespace polysketch
