#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/logging.h"

namespace polysketch {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("n: expected an even number, found ", n);
  return n / 2;
}

Result<int> Quarter(int n) {
  PS_ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

Status Check(int n) {
  PS_RETURN_IF_ERROR(Quarter(n).status());
  return Status();
}

TEST(StatusTest, CarriesCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "OK");
  const Status status = InvalidArgument("x: expected ", 1, ", found ", 2.5);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.ToString(), "INVALID_ARGUMENT: x: expected 1, found 2.5");
}

TEST(StatusTest, EveryCodeHasItsName) {
  for (int code = 0; code <= 15; ++code) {
    const std::string name(CodeName(static_cast<Code>(code)));
    EXPECT_FALSE(name.empty());
    EXPECT_EQ(name == "UNKNOWN", code == 2) << code;
  }
}

TEST(StatusTest, EveryReasonHasItsName) {
  std::set<std::string_view> names;
  for (int i = 1; i < kReasons; ++i) names.insert(ReasonName(static_cast<Reason>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kReasons - 1));
  EXPECT_EQ(names.count(""), 0U);
  EXPECT_EQ(NotFound("x").reason(), "NOT_FOUND");
  const Status full = ResourceExhausted("x").WithReason(Reason::kQueueFull);
  EXPECT_EQ(full.reason(), "QUEUE_FULL");
  EXPECT_EQ(full.WithMessage("y").reason(), "QUEUE_FULL");
  EXPECT_EQ(full.WithMessage("y").message(), "y");
}

TEST(StatusTest, FieldBeginsTheMessage) {
  const auto field = [](const char* message) {
    return std::string(InvalidArgument(message).field());
  };
  EXPECT_EQ(field("sampling.top_p: expected 1"), "sampling.top_p");
  EXPECT_EQ(field("tokens.ids[12]: expected 1"), "tokens.ids[12]");
  EXPECT_EQ(field("maxTokens: expected 1"), "maxTokens");
  EXPECT_EQ(field("the body: expected JSON"), "");
  EXPECT_EQ(field("x-tenant-id: expected it once"), "");
  EXPECT_EQ(field("prompt:expected"), "");
  EXPECT_EQ(field("prompt"), "");
  EXPECT_EQ(field(": expected"), "");
  EXPECT_EQ(field(""), "");
}

TEST(ResultTest, MacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "n: expected an even number, found 3");
  EXPECT_TRUE(Check(8).ok());
  EXPECT_FALSE(Check(7).ok());
}

TEST(ResultTest, MovesItsValue) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 5);
}

TEST(ResultDeathTest, ValueOfAnErrorAborts) {
  EXPECT_DEATH((void)Half(3).value(), "expected an even number");
}

TEST(CheckDeathTest, AbortsWithItsMessage) {
  const int found = 3;
  PS_CHECK(found == 3) << "not printed";
  EXPECT_DEATH(PS_CHECK(found == 4) << "found=" << found, "check failed: found == 4 found=3");
}

TEST(LoggingTest, TextAndJsonLinesQuoteWhatNeedsIt) {
  testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "request_done", {{"id", "r-1"}, {"note", "a \"b\"\nc"}, {"tokens", 3}});
  Log(LogLevel::kDebug, "dropped", {});
  SetLogJson(true);
  Log(LogLevel::kError, "failed", {{"why", "x\ty"}});
  Log(LogLevel::kError, "failed", {{"why", "x\xFFy"}});
  SetLogJson(false);
  FlushLog();
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find(" INFO request_done id=r-1 note=\"a \\\"b\\\"\\u000ac\" tokens=3\n"),
            std::string::npos)
      << lines;
  EXPECT_NE(lines.find("\"level\":\"ERROR\",\"event\":\"failed\",\"why\":\"x\\u0009y\"}\n"),
            std::string::npos)
      << lines;
  EXPECT_NE(lines.find("\"why\":\"x\xEF\xBF\xBDy\"}\n"), std::string::npos) << lines;
  EXPECT_EQ(lines.find("dropped"), std::string::npos);
}

TEST(LoggingTest, LevelNames) {
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel("loud").status().message(),
            "log level: expected debug, info, warning or error, found \"loud\"");
}

}  // namespace
}  // namespace polysketch
