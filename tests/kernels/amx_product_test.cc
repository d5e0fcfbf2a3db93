// Products by AMX tiles, by the processor's registers and by their emulation: of bytes against sums
// of integers, of bf16 words against the documented arithmetic of tdpbf16ps in software.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include "base/half.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_product.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using cpu::kTileBlock;
using cpu::kTileDepth;
using cpu::kTileSide;
using cpu::TileSession;
using cpu::TileUnit;
using testing::Random;

// Rows of activations and two panels. Exponents of elements are in [least, least + range).
struct Operands {
  int64_t depth;  // in words
  int64_t row_size;
  std::vector<uint16_t> x, w;

  Operands(int64_t depth_of_words, int least, int range, Random* random)
      : depth(depth_of_words),
        row_size((depth + kTileDepth - 1) / kTileDepth * cpu::kTileRowBytes) {
    const auto number = [&] {
      const int sign = random->Int(0, 1), exponent = random->Int(least, least + range - 1);
      return static_cast<uint16_t>(sign << 15 | exponent << 7 | random->Int(0, 127));
    };
    x.assign(static_cast<size_t>(kTileBlock * row_size / 2), 0);
    for (int m = 0; m < kTileBlock; ++m) {
      for (int64_t k = 0; k < 2 * depth; ++k) x[m * row_size / 2 + k] = number();
    }
    for (int64_t i = 0; i < 2 * depth * kTileBlock * 2; ++i) w.push_back(number());
  }

  cpu::TileRows rows(int first) const {
    return {reinterpret_cast<const uint8_t*>(x.data()) + first * row_size, row_size};
  }
  const uint32_t* panel(int index) const {
    return reinterpret_cast<const uint32_t*>(w.data()) + index * depth * kTileBlock;
  }
  float X(int m, int64_t k) const { return Bf16ToFloat(x[m * row_size / 2 + k]); }
  float W(int panel, int64_t k, int n) const {
    return Bf16ToFloat(w[((panel * depth + k / 2) * kTileBlock + n) * 2 + k % 2]);
  }
};

// Sums [panel][32][32], computed as one block of rows.
std::vector<float> BlockSums(TileUnit unit, const Operands& operands) {
  std::vector<float> sums(2 * kTileBlock * kTileBlock);
  const TileSession session(unit);
  for (int panel = 0; panel < 2; ++panel) {
    session.ProductBf16(
        operands.rows(0), operands.panel(panel), operands.depth, {operands.panel(1), 64},
        reinterpret_cast<float(*)[kTileBlock]>(sums.data() + panel * kTileBlock * kTileBlock));
  }
  return sums;
}

float Flushed(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// One element by the definition in amx_product.h.
float Expected(const Operands& operands, int panel, int m, int n) {
  float total = 0;
  for (int64_t first = 0; first < operands.depth; first += kTileDepth) {
    float chains[2] = {0, 0};
    for (int64_t k = first; k < std::min(first + kTileDepth, operands.depth); ++k) {
      for (int half = 0; half < 2; ++half) {
        chains[half] = Flushed(std::fma(Flushed(operands.X(m, 2 * k + half)),
                                        Flushed(operands.W(panel, 2 * k + half, n)), chains[half]));
      }
    }
    total = Flushed(total + Flushed(chains[0] + chains[1]));
  }
  return total;
}

class AmxProductTest : public ::testing::TestWithParam<TileUnit> {
 protected:
  void SetUp() override {
    const std::string isa = GetParam() == TileUnit::kAmx ? "avx512amx" : "avx512amx_emulated";
    if (!testing::MachineRuns(isa)) GTEST_SKIP() << "this machine cannot run " << isa;
  }
};

// Leaves bytes on the stack that no configuration of tiles has.
__attribute__((noinline)) void FillStack() {
  volatile uint8_t bytes[1 << 14];
  for (volatile uint8_t& byte : bytes) byte = 0xff;
}

TEST_P(AmxProductTest, ProductsOfBytesAreSumsOfIntegers) {
  Random random(4);
  for (const int64_t depth : {1, 15, 16, 17, 48, 61}) {
    const int64_t row_size = (depth + kTileDepth - 1) / kTileDepth * cpu::kTileRowBytes;
    std::vector<uint8_t> x(kTileBlock * row_size);
    std::vector<int8_t> w(depth * 4 * kTileBlock);
    for (uint8_t& value : x) value = static_cast<uint8_t>(random.Int(0, 255));
    for (int8_t& value : w) value = static_cast<int8_t>(random.Int(-128, 127));
    int32_t out[kTileBlock][kTileBlock];
    FillStack();
    {
      const TileSession session(GetParam());
      session.Product({x.data(), row_size}, w.data(), depth, {w.data(), 0}, out);
    }
    for (int m = 0; m < kTileBlock; ++m) {
      for (int n = 0; n < kTileBlock; ++n) {
        int32_t want = 0;
        for (int64_t k = 0; k < 4 * depth; ++k) {
          want += x[m * row_size + k] * w[k / 4 * 4 * kTileBlock + 4 * n + k % 4];
        }
        ASSERT_EQ(out[m][n], want) << "depth " << depth << " row " << m << " column " << n;
      }
    }
  }
}

struct Exponents {
  int least, range;
};
// Of numbers near 1; of numbers of every size, some subnormal, whose products are finite; of
// products around the least normal number.
constexpr Exponents kExponents[] = {{120, 12}, {0, 180}, {60, 8}};

TEST_P(AmxProductTest, HasTheDocumentedBits) {
  Random random(1);
  for (const auto& [least, range] : kExponents) {
    for (const int64_t depth : {1, 15, 16, 17, 48, 100}) {
      const Operands operands(depth, least, range, &random);
      const std::vector<float> sums = BlockSums(GetParam(), operands);
      for (int i = 0; i < static_cast<int>(sums.size()); ++i) {
        const int panel = i / (kTileBlock * kTileBlock), m = i / kTileBlock % kTileBlock;
        const float expected = Expected(operands, panel, m, i % kTileBlock);
        ASSERT_EQ(std::bit_cast<uint32_t>(sums[i]), std::bit_cast<uint32_t>(expected))
            << sums[i] << ", not " << expected << ", exponents from " << least << ", depth "
            << depth;
      }
    }
  }
}

TEST_P(AmxProductTest, RowsHaveTheSameBitsAloneAndInABlock) {
  Random random(2);
  for (const int64_t depth : {5, 16, 40, 384}) {
    const Operands operands(depth, 110, 20, &random);
    const std::vector<float> block = BlockSums(GetParam(), operands);
    for (int rows = 1; rows <= kTileSide; ++rows) {
      for (const int first : {0, 7}) {
        for (const int panels : {1, 2}) {
          const TileSession session(GetParam(), rows);
          float sums[2][kTileSide][kTileBlock];
          session.ProductBf16(operands.rows(first), operands.panel(0), panels, depth, sums);
          for (int i = 0; i < panels * rows; ++i) {
            const int panel = i / rows, m = i % rows;
            const float* want = block.data() + (panel * kTileBlock + first + m) * kTileBlock;
            ASSERT_EQ(std::memcmp(sums[panel][m], want, kTileBlock * sizeof(float)), 0)
                << "row " << first + m << " of " << rows << ", panel " << panel;
          }
        }
      }
    }
  }
}

// A fold adds the upper products of 32 tokens, then the lower ones.
TEST_P(AmxProductTest, SplitRowsAddUpperThenLowerProducts) {
  Random random(3);
  constexpr int64_t kWidth = 48, kGroups = 3, kGroupWords = 2 * kTileDepth;
  for (const auto& [least, range] : kExponents) {
    // Rows of groups of 32 words; the words of the upper and of the lower half have the same
    // factors.
    const Operands rows(kGroups * kGroupWords, least, range, &random);
    std::vector<uint16_t> factors;
    for (int64_t i = 0; i < kGroups * kTileDepth * kWidth * 2; ++i) {
      factors.push_back(rows.w[static_cast<size_t>(i)]);
    }
    std::vector<float> sums(kTileBlock * kWidth);
    const TileSession session(GetParam());
    for (const int first : {0, 32}) {
      session.ProductSplit(rows.rows(0), reinterpret_cast<const uint32_t*>(factors.data()) + first,
                           kWidth, kGroups, first == 0 ? 32 : 16, sums.data() + first, kWidth);
    }
    for (int m = 0; m < kTileBlock; ++m) {
      for (int n = 0; n < kWidth; ++n) {
        float total = 0;
        for (int part = 0; part < 2 * kGroups; ++part) {
          float chains[2] = {0, 0};
          for (int k = 0; k < 2 * kTileDepth; ++k) {
            const int64_t word = part / 2 * kTileDepth + k / 2;
            const float factor = Bf16ToFloat(factors[(word * kWidth + n) * 2 + k % 2]);
            float& chain = chains[k % 2];
            chain = Flushed(
                std::fma(Flushed(rows.X(m, part * 2 * kTileDepth + k)), Flushed(factor), chain));
          }
          total = Flushed(total + Flushed(chains[0] + chains[1]));
        }
        ASSERT_EQ(std::bit_cast<uint32_t>(sums[m * kWidth + n]), std::bit_cast<uint32_t>(total));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Unit, AmxProductTest,
                         ::testing::Values(TileUnit::kEmulated, TileUnit::kAmx),
                         [](const ::testing::TestParamInfo<TileUnit>& info) {
                           return info.param == TileUnit::kAmx ? "Amx" : "Emulated";
                         });

}  // namespace
}  // namespace polysketch
