#include "engine/sampler/row.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;

// Around the sizes of lanes and blocks.
constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 255, 256, 257, 271, 512, 1000, 4099};

TEST(RowTest, NegativeExpAgainstFloat64) {
  for (double x = 0; x < 86.9; x += 0.00037) {
    const double expected = std::exp(static_cast<double>(static_cast<float>(-x)));
    // Two roundings of values of at most 1.42 in the last steps, half of 2^-23 each, relative to at
    // least 0.7; what is before them is smaller.
    ASSERT_NEAR(NegativeExp(static_cast<float>(-x)) / expected, 1, 2.5e-7) << x;
  }
  EXPECT_EQ(NegativeExp(0.0f), 1);
  EXPECT_EQ(NegativeExp(-0.0f), 1);
  EXPECT_EQ(NegativeExp(-88.0f), 0);
  EXPECT_EQ(NegativeExp(std::numeric_limits<float>::lowest()), 0);
  EXPECT_EQ(NegativeExp(-std::numeric_limits<float>::infinity()), 0);
}

TEST(RowTest, WeightsAndTheSumsOfTheirBlocks) {
  Random random(3);
  for (const size_t size : kSizes) {
    const std::vector<float> logits = random.Normals(size, 8);
    const float max = *std::max_element(logits.begin(), logits.end());
    std::vector<float> weights, sums;
    Weigh(logits, max, 0.7f, &weights, &sums);
    ASSERT_EQ(weights.size(), size);
    ASSERT_EQ(sums.size(), (size + kRowBlock - 1) / kRowBlock);
    for (size_t block = 0; block < sums.size(); ++block) {
      double sum = 0;
      float largest = 0;
      for (size_t i = block * kRowBlock; i < std::min(size, (block + 1) * kRowBlock); ++i) {
        // The same bits, whatever the instruction set of the loop.
        ASSERT_EQ(weights[i], NegativeExp((logits[i] - max) * 0.7f)) << size << " " << i;
        sum += weights[i];
        largest = std::max(largest, weights[i]);
      }
      // 15 additions in a lane and 15 of lanes, half of 2^-23 each.
      EXPECT_NEAR(sums[block], sum, sum * 30 * 0x1p-24) << size;
      EXPECT_GE(sums[block], largest) << size;
    }
  }
}

TEST(RowTest, MaximaOfBlocks) {
  Random random(4);
  for (const size_t size : kSizes) {
    const std::vector<float> logits = random.Normals(size, 8, -20);
    std::vector<float> maxima;
    ASSERT_TRUE(BlockMaxima(logits, &maxima));
    ASSERT_EQ(maxima.size(), (size + kRowBlock - 1) / kRowBlock);
    for (size_t block = 0; block < maxima.size(); ++block) {
      const auto first = logits.begin() + static_cast<ptrdiff_t>(block * kRowBlock);
      const auto last =
          logits.begin() + static_cast<ptrdiff_t>(std::min(size, (block + 1) * kRowBlock));
      EXPECT_EQ(maxima[block], *std::max_element(first, last)) << size;
    }
  }
}

TEST(RowTest, MaximaOfAllowedLogits) {
  Random random(5);
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  for (const size_t size : kSizes) {
    const std::vector<float> logits = random.Normals(size, 8, -20);
    const std::vector<float> draws = random.Normals((size + 31) / 32 * 32, 1);
    for (const float threshold : {-9.0f, -1.0f, 0.0f, 1.5f, 9.0f}) {  // all to none are allowed
      std::vector<uint32_t> mask((size + 31) / 32);
      std::vector<float> expected(size, kLowest);
      for (size_t i = 0; i < draws.size(); ++i) {
        if (draws[i] < threshold) continue;
        mask[i / 32] |= 1u << (i % 32);  // bits after the last logit too
        if (i < size) expected[i] = logits[i];
      }
      std::vector<float> want, out(size), in_place = logits, maxima;
      ASSERT_TRUE(BlockMaxima(expected, &want));
      ASSERT_TRUE(AllowedMaxima(logits, mask, out.data(), &maxima));
      EXPECT_EQ(out, expected) << size << " " << threshold;
      EXPECT_EQ(maxima, want) << size << " " << threshold;
      ASSERT_TRUE(AllowedMaxima(in_place, mask, in_place.data(), &maxima));
      EXPECT_EQ(in_place, expected) << size << " " << threshold;
      EXPECT_EQ(maxima, want) << size << " " << threshold;
    }
  }
}

TEST(RowTest, OneValueThatIsNotFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const size_t size : kSizes) {
    std::vector<float> logits(size, -3.0f), maxima, out(size);
    const std::vector<uint32_t> none((size + 31) / 32);
    for (const float bad : {kInf, -kInf, std::nanf(""), -std::nanf("")}) {
      for (size_t i = 0; i < size; i += 1 + size / 40) {
        logits[i] = bad;
        EXPECT_FALSE(BlockMaxima(logits, &maxima)) << size << " " << i;
        EXPECT_FALSE(AllowedMaxima(logits, none, out.data(), &maxima)) << size << " " << i;
        logits[i] = -3.0f;
      }
    }
    EXPECT_TRUE(BlockMaxima(logits, &maxima));
    EXPECT_TRUE(AllowedMaxima(logits, none, out.data(), &maxima));
  }
}

}  // namespace
}  // namespace polysketch
