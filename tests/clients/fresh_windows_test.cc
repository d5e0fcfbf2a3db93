// Windows of a text: every token after the first counts once, with the context that is promised.
#include "clients/cpp/fresh_windows.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

// The windows of a text of `tokens` tokens, where token i has the id i and the loss i, appended
// `chunk` at a time.
std::vector<FreshWindow> WindowsOf(const WindowShape& shape, int tokens, int chunk) {
  WindowCutter cutter(shape);
  std::vector<FreshWindow> windows;
  const auto take = [&windows](std::vector<FreshWindow> more) {
    windows.insert(windows.end(), more.begin(), more.end());
  };
  for (int begin = 1; begin < tokens; begin += chunk) {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    for (int i = begin; i < std::min(begin + chunk, tokens); ++i) {
      ids.push_back(i);
      logprobs.push_back(static_cast<float>(-i));
    }
    take(cutter.Append(ids, logprobs));
  }
  EXPECT_EQ(cutter.text_tokens(), tokens);
  take(cutter.Finish());
  return windows;
}

TEST(FreshWindowsTest, OverlapByTheWarmUp) {
  // Windows of 6 begin at 0, 4 and 8. Each reads 6 tokens and predicts the one after them.
  const auto windows = WindowsOf({.length = 6, .warm_up = 2}, 12, 5);
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_TRUE(windows[0].at_start);
  EXPECT_EQ(windows[0].first, 1);
  EXPECT_EQ(windows[0].deep, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(windows[1].at_start);
  EXPECT_EQ(windows[1].first, 7);
  EXPECT_EQ(windows[1].tokens, (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(windows[1].deep, (std::vector<double>{7, 8, 9, 10}));
  EXPECT_EQ(windows[2].first, 11) << "the last window is shorter";
  EXPECT_EQ(windows[2].tokens, (std::vector<int32_t>{8, 9, 10, 11}));
  EXPECT_EQ(windows[2].deep, (std::vector<double>{11}));
}

TEST(FreshWindowsTest, EveryTokenCountsOnceForAnyShapeAndChunk) {
  for (const WindowShape shape : {WindowShape{2, 0}, {2, 1}, {5, 0}, {5, 4}, {8, 3}, {64, 32}}) {
    for (int tokens = 1; tokens < 70; ++tokens) {
      for (const int chunk : {1, 3, 100}) {
        int64_t next = 1;
        for (const FreshWindow& window : WindowsOf(shape, tokens, chunk)) {
          ASSERT_EQ(window.first, next);
          next += std::ssize(window.deep);
          for (size_t i = 0; i < window.deep.size(); ++i) {
            EXPECT_EQ(window.deep[i], static_cast<double>(window.first) + static_cast<double>(i));
          }
          if (window.at_start) continue;
          EXPECT_EQ(window.tokens.back(), next - 1) << "those that count are the last ones";
          EXPECT_EQ(window.first - window.tokens.front(), shape.warm_up + 1);
          EXPECT_LE(std::ssize(window.tokens), shape.length + 1);
        }
        EXPECT_EQ(next, tokens) << shape.length << " " << shape.warm_up << " " << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
