// 8-bit weights: every backend computes with the same integers (kernels/quantize.h), so products
// differ by the rounding of the scaling alone; rows do not depend on their neighbours.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "kernels/quantize.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::HostWeights;
using testing::Random;

constexpr double kU = 0x1p-24;

class QuantizedTest : public testing::IsaTest {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    if (!IsSkipped()) cpu_ = NewBackend(2);
  }
  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Backend> reference_ = NewReferenceBackend();
};

TEST_P(QuantizedTest, MatMulEqualsTheReferenceUpToTheScaling) {
  Random random(1);
  for (const auto& [in, out] : {std::pair(1, 1), std::pair(3, 33), std::pair(64, 32),
                                std::pair(97, 70), std::pair(192, 160), std::pair(768, 65)}) {
    const HostWeights w(random.Normals(in * out), in, out, DataType::kF32);
    const std::vector<float> bias = random.Normals(out);
    for (const bool transpose : {false, true}) {
      HostMatrix matrix = w.matrix();
      if (transpose) std::swap(matrix.rows, matrix.cols);
      const auto packed = cpu_->PackMatrix(matrix, transpose, DataType::kQ8);
      const auto expected = reference_->PackMatrix(matrix, transpose, DataType::kQ8);
      for (const int rows : {1, 2, 5, 12, 13, 25, 40}) {
        const std::vector<float> x = random.Normals(rows * in);
        std::vector<float> got = random.Normals(rows * out), want = got;
        const std::vector<float> old = got;
        const bool accumulate = rows % 2 == 1;
        cpu_->MatMul(x.data(), rows, *packed, bias.data(), accumulate, got.data());
        reference_->MatMul(x.data(), rows, *expected, bias.data(), accumulate, want.data());
        for (size_t i = 0; i < got.size(); ++i) {
          // int to float, two scalings, two additions, the reference's rounding: six of them, on
          // terms no larger than these.
          const double product =
              std::abs(static_cast<double>(want[i])) + std::abs(bias[i % out]) + std::abs(old[i]);
          ASSERT_NEAR(got[i], want[i], 8 * kU * product)
              << rows << " x " << in << " x " << out << " at " << i;
        }
      }
    }
  }
}

TEST_P(QuantizedTest, ErrorIsThatOfEightBits) {
  // Against the exact product: each factor is off by at most half a step of its vector.
  Random random(2);
  const int in = 256, out = 64, rows = 9;
  const std::vector<float> values = random.Normals(in * out), x = random.Normals(rows * in);
  const HostWeights w(values, in, out, DataType::kF32);
  const auto packed = cpu_->PackMatrix(w.matrix(), false, DataType::kQ8);
  std::vector<float> got(rows * out);
  cpu_->MatMul(x.data(), rows, *packed, nullptr, false, got.data());
  for (int m = 0; m < rows; ++m) {
    const double step_x = LargestMagnitude(x.data() + m * in, in, 1) / 127;
    for (int o = 0; o < out; ++o) {
      const double step_w = LargestMagnitude(values.data() + o, in, out) / 127;
      double exact = 0, bound = 0;
      for (int i = 0; i < in; ++i) {
        const double a = x[m * in + i], b = values[i * out + o];
        exact += a * b;
        bound += std::abs(a) * step_w / 2 + std::abs(b) * step_x / 2 + step_w * step_x / 4;
      }
      ASSERT_NEAR(got[m * out + o], exact, bound * 1.0001);
    }
  }
}

TEST_P(QuantizedTest, RowsDoNotDependOnTheirNeighbours) {
  Random random(3);
  const int in = 96, out = 200, rows = 40;
  const HostWeights w(random.Normals(in * out), in, out, DataType::kF32);
  const auto packed = cpu_->PackMatrix(w.matrix(), false, DataType::kQ8);
  const std::vector<float> x = random.Normals(rows * in);
  std::vector<float> all(rows * out), part(rows * out);
  cpu_->MatMul(x.data(), rows, *packed, nullptr, false, all.data());
  for (const int count : {1, 3, 12, 17}) {
    for (int first = 0; first + count <= rows; first += count) {
      cpu_->MatMul(x.data() + first * in, count, *packed, nullptr, false, part.data());
      ASSERT_EQ(std::memcmp(part.data(), all.data() + first * out, count * out * sizeof(float)), 0);
    }
  }
}

TEST_P(QuantizedTest, InstructionSetsAgreeOnEveryBit) {
  Random random(4);
  const int in = 130, out = 70, rows = 20;
  const HostWeights w(random.Normals(in * out), in, out, DataType::kF32);
  const std::vector<float> x = random.Normals(rows * in);
  std::vector<float> mine(rows * out), other(rows * out);
  cpu_->MatMul(x.data(), rows, *cpu_->PackMatrix(w.matrix(), false, DataType::kQ8), nullptr, false,
               mine.data());
  const std::unique_ptr<Backend> slowest = *NewCpuBackend(1, SupportedCpuIsas().front());
  slowest->MatMul(x.data(), rows, *slowest->PackMatrix(w.matrix(), false, DataType::kQ8), nullptr,
                  false, other.data());
  for (size_t i = 0; i < mine.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(mine[i]), std::bit_cast<uint32_t>(other[i])) << i;
  }
}

TEST_P(QuantizedTest, ZeroTinyAndBrokenRows) {
  const int in = 40, out = 33;
  Random random(5);
  const HostWeights w(random.Normals(in * out), in, out, DataType::kF32);
  const auto packed = cpu_->PackMatrix(w.matrix(), false, DataType::kQ8);
  std::vector<float> x(3 * in), y(3 * out, 7.0f);
  x[in] = 1e-40f;
  x[2 * in + 39] = std::numeric_limits<float>::quiet_NaN();
  cpu_->MatMul(x.data(), 3, *packed, nullptr, false, y.data());
  for (int o = 0; o < out; ++o) {
    EXPECT_EQ(y[o], 0);
    EXPECT_EQ(y[out + o], 0);
    EXPECT_TRUE(std::isnan(y[2 * out + o]));
  }
}

TEST_P(QuantizedTest, LearnedSketchTilesDoNotShow) {
  Random random(6);
  const int d = 24, r = 16, rows = 120;
  const testing::NetworkWeights weights(d, r, DataType::kF32, &random);
  const auto net = weights.Pack(*cpu_, DataType::kQ8);
  const std::vector<float> x = random.Normals(rows * d);
  std::vector<float> all(rows * r), one(r);
  cpu_->LearnedSketch(net->network, x.data(), rows, all.data());
  for (int m = 0; m < rows; ++m) {
    cpu_->LearnedSketch(net->network, x.data() + m * d, 1, one.data());
    ASSERT_EQ(std::memcmp(one.data(), all.data() + m * r, r * sizeof(float)), 0) << m;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizedTest, ::testing::ValuesIn(CompiledCpuIsas()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
