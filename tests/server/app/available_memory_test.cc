#include "server/app/available_memory.h"

#include <gtest/gtest.h>

namespace polysketch {
namespace {

TEST(AvailableMemoryTest, TheDefaultsAreASixteenth) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(DefaultRequestMemory(384 * kMiB), 64 * kMiB);
  EXPECT_EQ(DefaultRequestMemory(4096 * kMiB), 256 * kMiB);
  EXPECT_EQ(DefaultRequestMemory(1024 * 1024 * kMiB), 2048 * kMiB);
  EXPECT_EQ(DefaultGrammarMemory(384 * kMiB), 64 * kMiB);
  EXPECT_EQ(DefaultGrammarMemory(4096 * kMiB), 256 * kMiB);
  EXPECT_EQ(DefaultGrammarMemory(1024 * 1024 * kMiB), 1024 * kMiB);
  EXPECT_GT(AvailableMemory(), 0);
}

}  // namespace
}  // namespace polysketch
