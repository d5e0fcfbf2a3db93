// 8-bit and 4-bit weights: every backend computes with the same integers (kernels/quantize.h), so
// products differ by the rounding of the scaling alone; rows do not depend on their neighbours.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "base/half.h"
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "kernels/quantize.h"
#include "tests/kernels/noisy_sketch.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::HostWeights;
using testing::Random;

constexpr double kU = 0x1p-24;
constexpr double kGeluBeforeRoundingError = 3e-5;  // kernels/cpu/gelu_before_rounding.h, of |x| < 5

constexpr DataType kTypes[] = {DataType::kQ8, DataType::kQ4};

constexpr std::pair<int, int> kSizes[] = {{1, 1},   {3, 33},    {64, 32}, {65, 32},
                                          {97, 70}, {192, 160}, {768, 65}};

// Weights that q4 holds exactly: each group begins with -8 times its scale, which is a multiple of
// 1/64. The first group of a column has the largest scale, 127/64, so that the unit is 1/64.
std::vector<float> WithExactScales(int in, int out, Random* random) {
  std::vector<float> values(in * out);
  for (int n = 0; n < out; ++n) {
    float scale = 0;
    for (int k = 0; k < in; ++k) {
      if (k % kQ4Group == 0) {
        const int sign = random->Int(0, 1) == 0 ? -1 : 1;
        scale = static_cast<float>(sign * (k == 0 ? 127 : random->Int(1, 127))) / 64;
      }
      const auto q = static_cast<float>(k % kQ4Group == 0 ? -8 : random->Int(-8, 7));
      values[k * out + n] = q * scale;
    }
  }
  return values;
}

class QuantizedTest : public testing::IsaTest {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    if (!IsSkipped()) cpu_ = NewBackend(2);
  }

  // Products with `values` [in, out], as they are and transposed. scale_off: of each column, by how
  // much a weight may be off for each unit of an activation; empty: 0.
  void ExpectTheReferences(const std::vector<float>& values, int in, int out, DataType type,
                           const std::vector<double>& scale_off, Random* random) {
    std::vector<float> transposed(values.size());
    for (int k = 0; k < in; ++k) {
      for (int n = 0; n < out; ++n) transposed[n * in + k] = values[k * out + n];
    }
    const std::vector<float> bias = random->Normals(out);
    for (const bool transpose : {false, true}) {
      const HostWeights w(transpose ? transposed : values, transpose ? out : in,
                          transpose ? in : out, DataType::kF32);
      const auto packed = cpu_->PackMatrix(w.matrix(), transpose, type);
      const auto expected = reference_->PackMatrix(w.matrix(), transpose, type);
      for (const int rows : {1, 2, 5, 12, 13, 25, 40}) {
        const std::vector<float> x = random->Normals(rows * in);
        std::vector<float> got = random->Normals(rows * out), want = got;
        const std::vector<float> old = got;
        const bool accumulate = rows % 2 == 1;
        cpu_->MatMul(x.data(), rows, *packed, bias.data(), accumulate, got.data());
        reference_->MatMul(x.data(), rows, *expected, bias.data(), accumulate, want.data());
        for (size_t i = 0; i < got.size(); ++i) {
          // int to float, two scalings, two additions, the reference's rounding: six of them, on
          // terms no larger than these.
          const double product =
              std::abs(static_cast<double>(want[i])) + std::abs(bias[i % out]) + std::abs(old[i]);
          double off = 0;
          if (!scale_off.empty()) {
            // The integers of activations are off by half a step.
            const double step = LargestMagnitude(x.data() + i / out * in, in, 1) / 127;
            for (int k = 0; k < in; ++k) off += std::abs(x[i / out * in + k]) + step / 2;
            off *= scale_off[i % out];
          }
          ASSERT_NEAR(got[i], want[i], 8 * kU * (product + off) + off)
              << DataTypeName(type) << " " << rows << " x " << in << " x " << out << " at " << i;
        }
      }
    }
  }

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Backend> reference_ = NewReferenceBackend();
};

TEST_P(QuantizedTest, MatMulEqualsTheReferenceUpToTheScaling) {
  Random random(1);
  for (const auto& [in, out] : kSizes) {
    ExpectTheReferences(random.Normals(in * out), in, out, DataType::kQ8, {}, &random);
    ExpectTheReferences(WithExactScales(in, out, &random), in, out, DataType::kQ4, {}, &random);
  }
}

// Scales of q4 groups that are no multiples of their column's unit: each is off by half a unit at
// most. The largest scale of a column, 127 units, is at most its largest weight over 7; a group's
// integers are at most 8 times their activations.
TEST_P(QuantizedTest, ScalesOfGroupsAreOffByHalfAUnit) {
  Random random(10);
  for (const auto& [in, out] : kSizes) {
    const std::vector<float> values = random.Normals(in * out);
    std::vector<double> off(out);
    for (int n = 0; n < out; ++n) {
      off[n] = 8 * LargestMagnitude(&values[n], in, out) / (7.0 * 127 * 2);
    }
    ExpectTheReferences(values, in, out, DataType::kQ4, off, &random);
  }
}

// Sums of more groups than fit a 32-bit integer, of the largest integers of one sign.
TEST_P(QuantizedTest, LongSumsOfGroups) {
  const int in = 60000, out = 3;
  Random random(11);
  std::vector<float> values(in * out, -8.0f);
  for (int k = 0; k < in; ++k) values[k * out + 1] = k % 2 == 0 ? -8.0f : 7.0f;
  const HostWeights w(values, in, out, DataType::kF32);
  const auto packed = cpu_->PackMatrix(w.matrix(), false, DataType::kQ4);
  const std::vector<float> x(in, 127.0f);
  std::vector<float> got(out);
  cpu_->MatMul(x.data(), 1, *packed, nullptr, false, got.data());
  const double same = -8.0 * 127 * in;
  // The scale is 1, so that integers are exact; four sums are added, and two scales enter.
  EXPECT_NEAR(got[0], same, 6 * kU * -same);
  EXPECT_NEAR(got[1], same / 16, 6 * kU * -same);
  EXPECT_NEAR(got[2], same, 6 * kU * -same);
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
  const std::vector<float> x = random.Normals(rows * in);
  std::vector<float> all(rows * out), part(rows * out);
  for (const DataType type : kTypes) {
    const auto packed = cpu_->PackMatrix(w.matrix(), false, type);
    cpu_->MatMul(x.data(), rows, *packed, nullptr, false, all.data());
    for (const int count : {1, 3, 6, 12, 17}) {
      for (int first = 0; first + count <= rows; first += count) {
        cpu_->MatMul(x.data() + first * in, count, *packed, nullptr, false, part.data());
        ASSERT_EQ(std::memcmp(part.data(), all.data() + first * out, count * out * sizeof(float)),
                  0);
      }
    }
  }
}

TEST_P(QuantizedTest, InstructionSetsAgreeOnEveryBit) {
  Random random(4);
  const int in = 130, out = 70, rows = 20;
  const HostWeights w(random.Normals(in * out), in, out, DataType::kF32);
  const std::vector<float> x = random.Normals(rows * in);
  std::vector<float> mine(rows * out), other(rows * out);
  const std::unique_ptr<Backend> slowest = *NewCpuBackend(1, SupportedCpuIsas().front());
  for (const DataType type : kTypes) {
    cpu_->MatMul(x.data(), rows, *cpu_->PackMatrix(w.matrix(), false, type), nullptr, false,
                 mine.data());
    slowest->MatMul(x.data(), rows, *slowest->PackMatrix(w.matrix(), false, type), nullptr, false,
                    other.data());
    for (size_t i = 0; i < mine.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(mine[i]), std::bit_cast<uint32_t>(other[i]))
          << DataTypeName(type) << " " << i;
    }
  }
}

TEST_P(QuantizedTest, ZeroTinyAndBrokenRows) {
  const int in = 40, out = 33;
  Random random(5);
  const HostWeights w(random.Normals(in * out), in, out, DataType::kF32);
  std::vector<float> x(3 * in), y(3 * out, 7.0f);
  x[in] = 1e-40f;
  x[2 * in + 39] = std::numeric_limits<float>::quiet_NaN();
  for (const DataType type : kTypes) {
    cpu_->MatMul(x.data(), 3, *cpu_->PackMatrix(w.matrix(), false, type), nullptr, false, y.data());
    for (int o = 0; o < out; ++o) {
      EXPECT_EQ(y[o], 0);
      EXPECT_EQ(y[out + o], 0);
      EXPECT_TRUE(std::isnan(y[2 * out + o]));
    }
  }
}

TEST_P(QuantizedTest, LearnedSketchErrorIsThatOfEightBits) {
  Random random(8);
  const int d = 64, r = 32, rows = 25;
  const testing::NetworkWeights weights(d, r, DataType::kF32, &random);
  const auto cpu_net = weights.Pack(*cpu_, DataType::kQ8);
  const auto net = weights.Pack(*reference_, DataType::kQ8);
  const std::vector<float> x = random.Normals(rows * d);
  std::vector<float> got(rows * r), want(rows * r);
  cpu_->LearnedSketch(cpu_net->network, x.data(), rows, got.data());
  reference_->LearnedSketch(net->network, x.data(), rows, want.data());
  const auto multiply = [](const testing::NoisyRow& row, const Matrix& w) {
    return testing::NoisyMultiply(testing::NoisyRoundToBytes(row), w);
  };
  for (int m = 0; m < rows; ++m) {
    const std::vector<double> tolerance = testing::LearnedSketchTolerance(
        net->network, x.data() + m * d, want.data() + m * r, multiply, 0, kGeluBeforeRoundingError);
    for (int i = 0; i < r; ++i) ASSERT_NEAR(got[m * r + i], want[m * r + i], tolerance[i]) << m;
  }
}

TEST_P(QuantizedTest, LearnedSketchTilesDoNotShow) {
  Random random(6);
  // Enough rows for whole tiles of 32 with two threads; the last one has 24.
  const int d = 24, r = 16, rows = 152;
  const testing::NetworkWeights weights(d, r, DataType::kF32, &random);
  const std::vector<float> x = random.Normals(rows * d);
  std::vector<float> all(rows * r), one(r);
  for (const DataType type : {DataType::kQ8, DataType::kQ4, DataType::kBf16}) {
    const auto net = weights.Pack(*cpu_, type);
    cpu_->LearnedSketch(net->network, x.data(), rows, all.data());
    for (int m = 0; m < rows; ++m) {
      cpu_->LearnedSketch(net->network, x.data() + m * d, 1, one.data());
      ASSERT_EQ(std::memcmp(one.data(), all.data() + m * r, one.size() * sizeof(float)), 0) << m;
    }
  }
}

// Integers and scales that a checkpoint holds are kept: the product is that of the matrix which was
// quantised on load.
TEST_P(QuantizedTest, StoredIntegersAreKept) {
  Random random(7);
  const int in = 75, out = 40, rows = 3;
  const std::vector<float> values = random.Normals(in * out), x = random.Normals(rows * in);
  const HostWeights w(values, in, out, DataType::kF32);
  for (const DataType type : kTypes) {
    const testing::StoredQuantized stored(values, in, out, type);
    for (Backend* backend : {cpu_.get(), reference_.get()}) {
      std::vector<float> direct(rows * out), kept(rows * out);
      backend->MatMul(x.data(), rows, *backend->PackMatrix(w.matrix(), false, type), nullptr, false,
                      direct.data());
      backend->MatMul(x.data(), rows, *backend->PackMatrix(stored.matrix(), false, type), nullptr,
                      false, kept.data());
      EXPECT_EQ(direct, kept) << DataTypeName(type);
      // And read as other types.
      const auto wide = backend->PackMatrix(stored.matrix(), false, DataType::kF32);
      backend->MatMul(x.data(), rows, *wide, nullptr, false, kept.data());
      for (int i = 0; i < rows * out; ++i) {
        // Activations are not quantised there: within half a step of each.
        const double step = LargestMagnitude(x.data() + i / out * in, in, 1) / 127;
        double bound = 0;
        for (int k = 0; k < in; ++k) bound += 1.2 * std::abs(values[k * out + i % out]) + 0.2;
        ASSERT_NEAR(direct[i], kept[i], bound * step / 2);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizedTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);

TEST(QuantizeQ4Test, ExactWhereItCanBe) {
  Random random(8);
  for (int round = 0; round < 100; ++round) {
    const float scale = Bf16ToFloat(FloatToBf16(static_cast<float>(random.Normals(1)[0])));
    float x[kQ4Group];
    int8_t want[kQ4Group], got[kQ4Group];
    for (int i = 0; i < kQ4Group; ++i) {
      want[i] = static_cast<int8_t>(i == 5 ? -8 : static_cast<int>(i * 7 + round) % 16 - 8);
      x[i] = static_cast<float>(want[i]) * scale;
    }
    EXPECT_EQ(Bf16ToFloat(QuantizeGroupQ4(x, kQ4Group, got)), scale);
    EXPECT_EQ(std::memcmp(want, got, sizeof(want)), 0);
  }
}

TEST(QuantizeQ4Test, NoWorseThanTheWholeRange) {
  Random random(9);
  for (int round = 0; round < 100; ++round) {
    const std::vector<float> x = random.Normals(kQ4Group);
    int8_t q[kQ4Group];
    const float scale = Bf16ToFloat(QuantizeGroupQ4(x.data(), kQ4Group, q));
    const double step = LargestMagnitude(x.data(), kQ4Group, 1) / 8.0;
    double error = 0, whole = 0;
    for (int i = 0; i < kQ4Group; ++i) {
      ASSERT_GE(q[i], -8);
      ASSERT_LE(q[i], 7);
      error += std::pow(x[i] - static_cast<double>(q[i]) * scale, 2);
      // Rounding to steps of an eighth; the far end may miss its half step by another half.
      whole += std::pow(step, 2);
    }
    EXPECT_LE(error, whole);
    EXPECT_GT(error, 0);
  }
}

}  // namespace
}  // namespace polysketch
