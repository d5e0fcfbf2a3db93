#include "server/tracing/trace_context.h"

#include <gtest/gtest.h>

#include <set>

#include "server/convert/request_id.h"

namespace polysketch {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] = "b7ad6b7169203331";

std::string Traceparent(const std::string& flags) {
  return std::string("00-") + kTrace + "-" + kParent + "-" + flags;
}

TEST(TraceContext, ACallBelongsToItsTraceparent) {
  for (const char* flags : {"01", "03", "0f", "ff"}) {
    const auto trace = SampleCall(Traceparent(flags), /*sample_percent=*/0);
    ASSERT_TRUE(trace.has_value()) << flags;
    EXPECT_EQ(trace->trace_id, kTrace);
    EXPECT_EQ(trace->parent_id, kParent);
  }
}

TEST(TraceContext, TheSampledFlagOfTheCallerCounts) {
  for (const char* flags : {"00", "02", "0e", "fe"}) {
    EXPECT_FALSE(SampleCall(Traceparent(flags), /*sample_percent=*/100).has_value()) << flags;
  }
}

TEST(TraceContext, WithoutTraceparentAShareOfTheCallsBeginsATrace) {
  int sampled = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(SampleCall("", 0).has_value());
    EXPECT_TRUE(SampleCall("", 100).has_value());
    sampled += SampleCall("", 50).has_value();
  }
  // 1000 fair draws: 8 standard deviations on each side.
  EXPECT_NEAR(sampled, 500, 126);
  EXPECT_EQ(SampleCall("", 100)->parent_id, "");
}

TEST(TraceContext, IdsAreNewAndHaveTheFormOfTheStandard) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string trace = NewTraceId();
    const std::string span = NewSpanId();
    EXPECT_TRUE(IsTraceparent("00-" + trace + "-" + span + "-01")) << trace << " " << span;
    ids.insert(trace);
    ids.insert(span);
  }
  EXPECT_EQ(ids.size(), 2000u);
}

}  // namespace
}  // namespace polysketch
