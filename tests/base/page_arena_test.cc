#include "base/page_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace polysketch {
namespace {

bool AllAre(const std::shared_ptr<uint8_t[]>& array, size_t size, uint8_t value) {
  return std::all_of(array.get(), array.get() + size, [=](uint8_t x) { return x == value; });
}

TEST(PageArenaTest, ArraysAreZeroAlignedAndApart) {
  PageArena arena;
  const size_t sizes[] = {1, 63, 64, 65, 0, 4096, size_t{3} << 20, 7};
  std::vector<std::shared_ptr<uint8_t[]>> arrays;
  for (const size_t size : sizes) {
    arrays.push_back(arena.New<uint8_t>(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arrays.back().get()) % PageArena::kAlignment, 0u) << size;
    EXPECT_TRUE(AllAre(arrays.back(), size, 0)) << size;
    std::fill_n(arrays.back().get(), size, static_cast<uint8_t>(arrays.size()));
  }
  for (size_t i = 0; i < arrays.size(); ++i) {
    EXPECT_TRUE(AllAre(arrays[i], sizes[i], static_cast<uint8_t>(i + 1))) << sizes[i];
  }
}

TEST(PageArenaTest, ArraysLargerThanAChunkAndBeyondItsEnd) {
  PageArena arena;
  const size_t half = PageArena::kChunk / 2 + 1;
  const auto first = arena.New<uint8_t>(half);
  const auto second = arena.New<uint8_t>(half);  // does not fit after the first
  const auto large = arena.New<uint8_t>(PageArena::kChunk + 1);
  first[half - 1] = 1;
  second[half - 1] = 2;
  large[PageArena::kChunk] = 3;
  EXPECT_EQ(first[half - 1], 1);
  EXPECT_EQ(second[0], 0);
  EXPECT_EQ(large[0], 0);
}

TEST(PageArenaTest, ArraysOutliveTheArena) {
  auto arena = std::make_unique<PageArena>();
  const auto numbers = arena->New<int64_t>(1000);
  arena.reset();
  numbers[999] = 5;
  EXPECT_EQ(numbers[999], 5);
  EXPECT_EQ(numbers[0], 0);
}

}  // namespace
}  // namespace polysketch
