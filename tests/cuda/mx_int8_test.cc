// 8-bit numbers in blocks with a scale (kernels/cuda/mx_int8.h), against their definition in double
// arithmetic.
#include "kernels/cuda/mx_int8.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "base/half.h"
#include "tests/testing/random.h"

namespace polysketch::cuda {
namespace {

struct Row {
  explicit Row(const std::vector<float>& x)
      : width(std::ssize(x)), numbers(x.size(), 0x55), scales(MxScales(width)) {
    MakeMxRow(
        width, [&](int64_t i) { return x[static_cast<size_t>(i)]; }, numbers.data(), scales.data());
  }
  std::vector<float> Values() const {
    std::vector<float> values;
    for (int64_t i = 0; i < width; ++i) {
      values.push_back(MxValue(numbers[MxPlace(width, i)], scales[i / kMxBlock]));
    }
    return values;
  }
  int64_t width;
  std::vector<uint8_t> numbers, scales;
};

TEST(MxInt8Test, PlacesAreAPermutation) {
  for (int64_t width = 1; width < 150; ++width) {
    std::vector<int> seen(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) {
      ASSERT_LT(MxPlace(width, i), width) << width;
      ++seen[static_cast<size_t>(MxPlace(width, i))];
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << width;
  }
}

// Values of every magnitude that blocks have, and rows that end within a block.
TEST(MxInt8Test, ValuesAreTheNearestInStepsOfTheirBlock) {
  testing::Random random(1);
  for (int exponent = -140; exponent < 127; ++exponent) {
    const int64_t width = random.Int(1, 100);
    std::vector<float> x = random.Normals(width, 0.3);
    for (float& value : x) value = static_cast<float>(std::ldexp(value, exponent));
    const Row row(x);
    const std::vector<float> values = row.Values();
    for (int64_t first = 0; first < width; first += kMxBlock) {
      double largest = 0;
      for (int64_t i = first; i < std::min(width, first + kMxBlock); ++i) {
        largest = std::max<double>(largest, std::abs(x[i]));
      }
      const double size = largest == 0 ? -126 : std::floor(std::log2(largest * (1 + 0x1p-7))) - 6;
      const double step = std::exp2(std::max(-126.0, size));
      for (int64_t i = first; i < std::min(width, first + kMxBlock); ++i) {
        ASSERT_EQ(values[i], std::nearbyint(x[i] / step) * step) << exponent << " " << x[i];
        ASSERT_LE(std::abs(values[i] / step), 127);
        ASSERT_EQ(std::signbit(values[i]), std::signbit(x[i]));
        ASSERT_EQ(Bf16ToFloat(FloatToBf16(values[i])), values[i]);
        ASSERT_EQ(MxRounded(x[i], row.scales[i / kMxBlock]), std::bit_cast<uint32_t>(values[i]));
      }
    }
    const Row again(values);
    EXPECT_EQ(again.numbers, row.numbers) << exponent;
    EXPECT_EQ(again.scales, row.scales) << exponent;
  }
}

// Magnitudes at which a block gets the next scale, and half steps.
TEST(MxInt8Test, EdgesOfBlocks) {
  for (const float x :
       {126.99f, 127.0f, 127.007f, 127.008f, 127.5f, 127.999f, 128.0f, 0.5f, 1.5f}) {
    const Row row({x, 2.5f, -3.5f, 0.0f});
    for (const float value : row.Values()) EXPECT_LE(std::abs(value), 128);
    EXPECT_EQ(Row(row.Values()).numbers, row.numbers) << x;
  }
  EXPECT_EQ(Row({127.0f, 2.5f, -3.5f}).Values(), (std::vector<float>{127, 2, -4}));
  EXPECT_EQ(Row(std::vector<float>(40)).Values(), std::vector<float>(40));
  EXPECT_EQ(MxValue(0, 0), 0);  // of fresh memory
}

TEST(MxInt8Test, WhatIsNotFiniteIsNotANumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {kInfinity, -kInfinity, std::nanf(""), -3e38f}) {
    const Row row({1.0f, x});
    for (const float value : row.Values()) EXPECT_TRUE(std::isnan(value)) << x;
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(MxRounded(1.0f, row.scales[0]))));
  }
  EXPECT_EQ(Row({1.6e38f}).scales[0], 247);
}

}  // namespace
}  // namespace polysketch::cuda
