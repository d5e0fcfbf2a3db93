// Numbers of 8 bits in blocks of 32 with one scale, a power of two, as MXINT8 of the OCP Microscaling Formats (MX)
// 1.0 specification has them, but of a sign and a magnitude. The cuda backend reads them under StateFormat::kQ8:
// of S as a copy that every change of S makes anew, of KV caches as what they hold of keys and values.
//
//   x ~ q 2^(s - 127)    |q| <= 127, s the scale of x's block, 1 to 247; 255: not a number
//
// The products are numbers of bf16. So kernels that multiply bf16 read either with the same bits, and what is
// rounded again stays as it is.
//
// An array of rows has the numbers [rows][width], then the scales [rows][MxScales(width)]: blocks are of one row.
// S is one row, so that its blocks are those of warps. The functions also compile for a GPU.
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

// The sign and the magnitude of x in a block with this scale. Ties go to even numbers.
constexpr uint8_t MxNumber(float x, uint8_t scale) {
  if (scale == 255) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float steps =
      std::bit_cast<float>(bits & 0x7fffffffu) * std::bit_cast<float>((254u - scale) << 23);
  return static_cast<uint8_t>(bits >> 31 << 7 | (std::bit_cast<uint32_t>(steps + 0x1p23f) & 0x7fu));
}

// The product of a number and a scale.
constexpr float MxValue(uint8_t number, uint8_t scale) {
  const float value =
      static_cast<float>(number & 0x7f) * std::bit_cast<float>(uint32_t{scale} << 23);
  return (number & 0x80) != 0 ? -value : value;
}

// Makes a row of x(i), i < width, by one thread. scales: of the row.
template <typename Value>
constexpr void MakeMxRow(int64_t width, const Value& x, uint8_t* numbers, uint8_t* scales) {
  for (int64_t first = 0; first < width; first += kMxBlock) {
    const int64_t last = first + kMxBlock < width ? first + kMxBlock : width;
    uint32_t magnitude = 0;
    for (int64_t i = first; i < last; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x(i)) & 0x7fffffffu;
      magnitude = magnitude < bits ? bits : magnitude;
    }
    const uint8_t scale = MxScale(magnitude);
    scales[first / kMxBlock] = scale;
    for (int64_t i = first; i < last; ++i) numbers[MxPlace(width, i)] = MxNumber(x(i), scale);
  }
}

}  // namespace polysketch::cuda
