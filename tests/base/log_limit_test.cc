#include "base/log_limit.h"

#include <string>

#include "base/logging.h"
#include "gtest/gtest.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

constexpr LogLimit::Clock::time_point kStart{1000s};

// What calls of Allow log.
template <typename Call>
std::string Logged(const Call& call) {
  ::testing::internal::CaptureStderr();
  call();
  FlushLog();
  return ::testing::internal::GetCapturedStderr();
}

TEST(LogLimit, EachSecondHasItsLines) {
  for (const int64_t most : {1, 50}) {
    LogLimit limit("lines_not_logged", most);
    for (int second = 0; second < 3; ++second) {
      int allowed = 0;
      Logged([&] {
        for (int i = 0; i < 200; ++i) allowed += limit.Allow(kStart + second * 1s + i * 4ms);
      });
      EXPECT_EQ(allowed, most) << second;
    }
  }
}

TEST(LogLimit, TheNextSecondCountsWhatWasLeftOut) {
  LogLimit limit("lines_not_logged", 1);
  EXPECT_EQ(Logged([&] {
              for (int i = 0; i < 10; ++i) limit.Allow(kStart);
            }),
            "");
  const std::string counted = Logged([&] { EXPECT_TRUE(limit.Allow(kStart + 1s)); });
  EXPECT_NE(counted.find("lines_not_logged count=9\n"), std::string::npos) << counted;
  // Only once, and not after a second without a line too many.
  EXPECT_EQ(Logged([&] {
              EXPECT_FALSE(limit.Allow(kStart + 1900ms));
              EXPECT_FALSE(limit.Allow(kStart + 1999ms));
            }),
            "");
  const std::string again = Logged([&] { EXPECT_TRUE(limit.Allow(kStart + 10s)); });
  EXPECT_NE(again.find("lines_not_logged count=2\n"), std::string::npos) << again;
  EXPECT_EQ(Logged([&] { EXPECT_TRUE(limit.Allow(kStart + 11s)); }), "");
}

}  // namespace
}  // namespace polysketch
