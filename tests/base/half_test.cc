// Every 16-bit value, and float32 values around every rounding boundary, against the definition in
// float64.
#include "base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace polysketch {
namespace {

// A 16-bit format as (exponent bits, mantissa bits); the value of one bit pattern.
double Value(uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(HalfTest, EveryValueIsExactAndRoundTrips) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float bf16 = Bf16ToFloat(half), f16 = F16ToFloat(half);
    if (std::isnan(Value(half, 7))) {
      EXPECT_TRUE(std::isnan(bf16)) << bits;
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(bf16)))) << bits;
    } else {
      EXPECT_EQ(bf16, Value(half, 7)) << bits;
      EXPECT_EQ(FloatToBf16(bf16), half);
    }
    if (std::isnan(Value(half, 10))) {
      EXPECT_TRUE(std::isnan(f16)) << bits;
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(f16)))) << bits;
    } else {
      EXPECT_EQ(f16, Value(half, 10)) << bits;
      EXPECT_EQ(FloatToF16(f16), half);
    }
  }
}

// Between neighbours a < b: everything below the middle gives a, above gives b, the middle the even
// one.
template <typename Convert>
void ExpectRoundsToNearestEven(const Convert& convert, int mantissa_bits, uint16_t infinity) {
  for (uint16_t bits = 0; bits + 1 < infinity; ++bits) {
    const auto next = static_cast<uint16_t>(bits + 1);
    const auto middle =
        static_cast<float>((Value(bits, mantissa_bits) + Value(next, mantissa_bits)) / 2);
    EXPECT_EQ(convert(middle), bits % 2 == 0 ? bits : next) << bits;
    EXPECT_EQ(convert(std::nextafter(middle, 0.0f)), bits) << bits;
    EXPECT_EQ(convert(std::nextafter(middle, std::numeric_limits<float>::infinity())), next)
        << bits;
    EXPECT_EQ(convert(-middle), (bits % 2 == 0 ? bits : next) | 0x8000) << bits;
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  ExpectRoundsToNearestEven(FloatToF16, 10, 0x7c00);
  // Subnormal bf16 values have middles that a float32 holds too: the formats share their exponent.
  ExpectRoundsToNearestEven(FloatToBf16, 7, 0x7f80);
}

TEST(HalfTest, OverflowIsInfinity) {
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);  // below the middle of 65504 and 65536
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace polysketch
