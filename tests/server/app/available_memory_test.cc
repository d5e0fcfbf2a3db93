#include "server/app/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace polysketch {
namespace {

TEST(AvailableMemoryTest, TheLeastLimitOfTheGroupsCounts) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "cgroup_memory";
  std::filesystem::create_directories(root / "a" / "b");
  const std::string folder = root.string();
  EXPECT_EQ(MemoryOfCgroup("0::/a/b\n", folder), std::nullopt);
  std::ofstream(root / "a" / "b" / "memory.max") << "max\n";
  EXPECT_EQ(MemoryOfCgroup("0::/a/b\n", folder), std::nullopt);
  std::ofstream(root / "a" / "memory.max") << "402653184\n";
  EXPECT_EQ(MemoryOfCgroup("0::/a/b\n", folder), 402653184);
  EXPECT_EQ(MemoryOfCgroup("5:cpu:/x\n0::/a/b\n", folder), 402653184);
  std::ofstream(root / "a" / "b" / "memory.max") << "1048576\n";
  EXPECT_EQ(MemoryOfCgroup("0::/a/b\n", folder), 1048576);
  EXPECT_EQ(MemoryOfCgroup("0::/\n", folder), std::nullopt);
  std::ofstream(root / "memory.max") << "2097152\n";  // the group of a container
  EXPECT_EQ(MemoryOfCgroup("0::/\n", folder), 2097152);
  EXPECT_EQ(MemoryOfCgroup("5:memory:/a\n", folder), std::nullopt);
  EXPECT_EQ(MemoryOfCgroup("", folder), std::nullopt);
  std::filesystem::remove_all(root);
}

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
