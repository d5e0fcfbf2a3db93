// Products of tiles, by the processor's registers where it has them and by their emulation, against
// sums of integers.
#include "kernels/cpu/amx_product.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/amx.h"
#include "tests/testing/random.h"

namespace polysketch::cpu {
namespace {

using testing::Random;

// Leaves bytes on the stack that no configuration of tiles has.
__attribute__((noinline)) void FillStack() {
  volatile uint8_t bytes[1 << 14];
  for (volatile uint8_t& byte : bytes) byte = 0xff;
}

class TileSessionTest : public ::testing::TestWithParam<TileUnit> {
 protected:
  void SetUp() override {
    if (GetParam() == TileUnit::kAmx && !HasAmx()) GTEST_SKIP() << "no AMX";
  }
};

TEST_P(TileSessionTest, ProductsAreSumsOfIntegers) {
  Random random(1);
  for (const int64_t depth : {1, 15, 16, 17, 48, 61}) {
    const int64_t x_row = (depth + kTileDepth - 1) / kTileDepth * kTileRowBytes;
    std::vector<uint8_t> x(kTileBlock * x_row);
    std::vector<int8_t> w(depth * 4 * kTileBlock);
    for (uint8_t& value : x) value = static_cast<uint8_t>(random.Int(0, 255));
    for (int8_t& value : w) value = static_cast<int8_t>(random.Int(-128, 127));
    alignas(64) int32_t out[kTileBlock][kTileBlock];
    FillStack();
    {
      const TileSession session(GetParam());
      session.Product(x.data(), x_row, w.data(), depth, out);
    }
    for (int m = 0; m < kTileBlock; ++m) {
      for (int n = 0; n < kTileBlock; ++n) {
        int32_t want = 0;
        for (int64_t k = 0; k < 4 * depth; ++k) {
          want += x[m * x_row + k] * w[k / 4 * 4 * kTileBlock + 4 * n + k % 4];
        }
        ASSERT_EQ(out[m][n], want) << "depth " << depth << " row " << m << " column " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Units, TileSessionTest,
                         ::testing::Values(TileUnit::kAmx, TileUnit::kEmulated),
                         [](const auto& param) {
                           return param.param == TileUnit::kAmx ? "amx" : "emulated";
                         });

}  // namespace
}  // namespace polysketch::cpu
