// Products with 8-bit and 4-bit weights, against the reference and to the bit.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/quantize.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/noisy_sketch.h"
#include "tests/kernels/weights.h"
#include "tests/testing/guarded_floats.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::GuardedFloats;
using testing::HostWeights;
using testing::kU;
using testing::Random;

using CudaQuantizedTest = testing::CudaTest;

// Both quantise with the same integers. q8: only the scaling is rounded, so the result is known to the
// bit. q4: the groups are added in float32, a rounding each, of terms no larger than their sum of
// magnitudes. Shapes: parts of words and of tiles, more k than the slices of a thread block.
TEST_F(CudaQuantizedTest, QuantizedMatMul) {
  Random random(3);
  for (const auto& [in, out] : {std::pair(45, 37), std::pair(32, 16), std::pair(1100, 21)}) {
    const std::vector<float> values = random.Normals(in * out);
    const HostWeights w(values, in, out, DataType::kF32);
    const GuardedFloats bias(random.Normals(out));
    for (const DataType type : {DataType::kQ8, DataType::kQ4}) {
      const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
      const auto expected = reference_->PackMatrix(w.matrix(), false, type);
      EXPECT_EQ(packed->type(), type);
      EXPECT_EQ(packed->bytes(), expected->bytes());
      for (const int rows : {1, 3, 10}) {
        const GuardedFloats x(random.Normals(rows * in));
        const std::vector<float> old = random.Normals(rows * out);
        const float* bias_or_null = rows == 3 ? bias.data() : nullptr;
        const bool accumulate = rows == 10;
        GuardedFloats got(old), want(old);
        cuda_->MatMul(x.data(), rows, *packed, bias_or_null, accumulate, got.data());
        reference_->MatMul(x.data(), rows, *expected, bias_or_null, accumulate, want.data());
        const std::string what =
            StrCat("MatMul ", rows, "x", in, "x", out, " ", DataTypeName(type));
        for (size_t i = 0; i < want.size(); ++i) {
          const size_t row = i / out, column = i % out;
          double product = std::abs(want[i]) + std::abs(bias[column]) + std::abs(old[i]);
          double roundings = 8;
          if (type == DataType::kQ4) {
            for (int k = 0; k < in; ++k) {
              product += std::abs(double{x[row * in + k]} * values[k * out + column]);
            }
            roundings += static_cast<double>(Q4Groups(in));
          }
          ASSERT_NEAR(got[i], want[i], roundings * kU * product) << what << " element " << i;
        }
        // Each row alone has the bits that it has among others.
        for (int m = 0; m < rows; ++m) {
          GuardedFloats alone(
              std::vector<float>(old.begin() + m * out, old.begin() + (m + 1) * out));
          cuda_->MatMul(x.data() + m * in, 1, *packed, bias_or_null, accumulate, alone.data());
          for (int o = 0; o < out; ++o) ASSERT_EQ(alone[o], got[m * out + o]) << what << " " << m;
        }
      }
    }
  }
}

// An 8-bit product is the exact sum of integers, scaled once.
TEST_F(CudaQuantizedTest, EightBitMatMulIsExact) {
  Random random(4);
  const int in = 700, out = 19, rows = 5;
  const std::vector<float> values = random.Normals(in * out), x = random.Normals(rows * in);
  const HostWeights w(values, in, out, DataType::kF32);
  const auto packed = cuda_->PackMatrix(w.matrix(), false, DataType::kQ8);
  GuardedFloats got(rows * out);
  cuda_->MatMul(x.data(), rows, *packed, nullptr, false, got.data());
  for (int m = 0; m < rows; ++m) {
    const QuantScale of_x = QuantScale::Of(LargestMagnitude(x.data() + m * in, in, 1));
    for (int o = 0; o < out; ++o) {
      const QuantScale of_w = QuantScale::Of(LargestMagnitude(values.data() + o, in, out));
      int32_t sum = 0;
      for (int k = 0; k < in; ++k) {
        sum += Quantize(x[m * in + k], of_x) * Quantize(values[k * out + o], of_w);
      }
      EXPECT_EQ(got[m * out + o], static_cast<float>(sum) * (of_x.scale * of_w.scale)) << m << o;
    }
  }
}

TEST_F(CudaQuantizedTest, FourBitWeightsTakeHalfTheMemoryOfEightBits) {
  const int in = 1024, out = 256;
  const HostWeights w(Random(5).Normals(in * out), in, out, DataType::kF32);
  const auto held = [&](DataType type) {
    const size_t before = cuda_->device().device_memory().held;
    const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
    return cuda_->device().device_memory().held - before;
  };
  EXPECT_LE(held(DataType::kQ8), size_t{in} * out + out * 4 + 512);
  EXPECT_LE(held(DataType::kQ4), size_t{in} * out / 2 + in / 32 * out * 2 + 512);
}

}  // namespace
}  // namespace polysketch
