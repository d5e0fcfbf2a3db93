// Numbers of 8 bits in blocks of 32 with one scale, a power of two, as MXINT8 of the OCP Microscaling
// Formats (MX) 1.0 specification has them, but of a sign and a magnitude. The cuda backend has them under
// StateFormat::kQ8: queries read S as a copy in these numbers, which each change of S makes anew, and KV
// caches hold keys and values in them.
//
//   x ~ q 2^(s - 127)    |q| <= 127    s: the scale of x's block, 1 to 247, or 255
//
// The products are numbers of bf16. So kernels that multiply bf16 read either with the same bits, and
// rounding is idempotent. A block is not a number (255) if one of its elements is NaN, infinite or at least
// 2^127 (1 - 2^-7) in magnitude. Below 2^-120 the step of a block stays 2^-126.
//
// An array of rows has the numbers [rows][width], then the scales [rows][MxScales(width)]: blocks are of one
// row. The functions also compile for a GPU.
#pragma once

#include <bit>
#include <cstdint>

namespace polysketch::cuda {

constexpr int kMxBlock = 32;

constexpr int64_t MxScales(int64_t width) { return (width + kMxBlock - 1) / kMxBlock; }

// Where the scales after `size` numbers begin.
constexpr int64_t MxScalesAt(int64_t size) { return (size + 15) / 16 * 16; }

// Bytes of an array, without padding after the scales.
constexpr int64_t MxBytes(int64_t rows, int64_t width) {
  return MxScalesAt(rows * width) + rows * MxScales(width);
}

// Where number i of a row of `width` is. Those of columns c and c + 8 of 16 are neighbours, as fragments of
// tensor cores are made.
constexpr int64_t MxPlace(int64_t width, int64_t i) {
  const int64_t column = i % 16;
  if (i - column + 16 > width) return i;
  return i - column + (column < 8 ? 2 * column : 2 * column - 15);
}

// The scale of a block. magnitude: the largest of the bits of |x|, where NaN is larger than all numbers.
constexpr uint8_t MxScale(uint32_t magnitude) {
  // 127 steps hold the magnitude times 1 + 2^-7, less than 2^7 of them, even when it is rounded up.
  const uint32_t more = magnitude + (((magnitude & 0x7fffffu) | 0x800000u) >> 7);
  const uint32_t exponent = more >> 23;
  return static_cast<uint8_t>(exponent > 247 + 6 ? 255 : exponent > 7 ? exponent - 6 : 1);
}

// |x| in steps of its block, a whole number, plus 2^23. Ties go to even numbers.
constexpr float MxSteps(float x, uint8_t scale) {
  const float size = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
  return size * std::bit_cast<float>((254u - scale) << 23) + 0x1p23f;
}

// The sign and the magnitude of x in a block with this scale.
constexpr uint8_t MxNumber(float x, uint8_t scale) {
  if (scale == 255) return 0;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(x) >> 31 << 7 |
                              (std::bit_cast<uint32_t>(MxSteps(x, scale)) & 0x7fu));
}

// The bits of MxValue(MxNumber(x, scale), scale).
constexpr uint32_t MxRounded(float x, uint8_t scale) {
  if (scale == 255) return 0x7fc00000u;
  const float size = (MxSteps(x, scale) - 0x1p23f) * std::bit_cast<float>(uint32_t{scale} << 23);
  return std::bit_cast<uint32_t>(size) | (std::bit_cast<uint32_t>(x) & 0x80000000u);
}

// The product of a number and a scale.
constexpr float MxValue(uint8_t number, uint8_t scale) {
  if (scale == 255) return std::bit_cast<float>(0x7fc00000u);
  const float value =
      static_cast<float>(number & 0x7f) * std::bit_cast<float>(uint32_t{scale} << 23);
  return (number & 0x80) != 0 ? -value : value;
}

// Makes a row of x(i), i < width; x is called once for each, in order. scales: of the row.
template <typename Value>
constexpr void MakeMxRow(int64_t width, const Value& x, uint8_t* numbers, uint8_t* scales) {
  for (int64_t first = 0; first < width; first += kMxBlock) {
    const int64_t count = first + kMxBlock < width ? kMxBlock : width - first;
    float block[kMxBlock] = {};
    uint32_t magnitude = 0;
    for (int64_t i = 0; i < count; ++i) {
      block[i] = x(first + i);
      const uint32_t bits = std::bit_cast<uint32_t>(block[i]) & 0x7fffffffu;
      magnitude = magnitude < bits ? bits : magnitude;
    }
    const uint8_t scale = MxScale(magnitude);
    scales[first / kMxBlock] = scale;
    for (int64_t i = 0; i < count; ++i) {
      numbers[MxPlace(width, first + i)] = MxNumber(block[i], scale);
    }
  }
}

}  // namespace polysketch::cuda
