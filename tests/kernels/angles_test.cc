// Angles at positions in the millions, against 113-bit arithmetic.
#include "kernels/angles.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

__extension__ typedef __float128 Quad;

// 2 pi to 113 bits: three doubles that add up exactly.
const Quad kTwoPi = static_cast<Quad>(0x1.921fb54442d18p+2) +
                    static_cast<Quad>(0x1.1a62633145c07p-52) -
                    static_cast<Quad>(0x1.f1976b7ed8fbcp-108);

// The angle, reduced to (-2 pi, 2 pi) in 113 bits: what is left has an error below 1e-20 for angles
// up to 1e12.
double Reduced(float theta, int64_t position) {
  const Quad angle = static_cast<Quad>(theta) * static_cast<Quad>(position);
  const int64_t turns = static_cast<int64_t>(angle / kTwoPi);
  return static_cast<double>(angle - static_cast<Quad>(turns) * kTwoPi);
}

TEST(AnglesTest, ThetasAreThePowersRoundedOnce) {
  for (const int width : {2, 8, 64, 768}) {
    const std::vector<float> rope = RopeThetas(width), position = PositionThetas(width);
    ASSERT_EQ(rope.size(), static_cast<size_t>(width / 2));
    ASSERT_EQ(position.size(), static_cast<size_t>(width / 2));
    for (int i = 0; i < width / 2; ++i) {
      EXPECT_EQ(rope[i], static_cast<float>(std::pow(10000.0L, -2.0L * i / width)));
      EXPECT_EQ(position[i],
                static_cast<float>(std::pow(10000.0L, -static_cast<long double>(i) / (width / 2))));
    }
  }
}

TEST(AnglesTest, CosSinAtMillions) {
  const std::vector<float> thetas = RopeThetas(64);
  const Rotations rotations(thetas);
  std::vector<float> cos(thetas.size()), sin(thetas.size());
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{1000000},
                                 int64_t{5000000}, int64_t{16777217}, int64_t{1} << 40}) {
    Rotations::Start start;
    for (const bool rotates : {false, true}) {
      if (rotates) {
        rotations.CosSin(position, &start, cos.data(), sin.data());
      } else {
        CosSin(thetas, position, cos.data(), sin.data());
      }
      for (size_t i = 0; i < thetas.size(); ++i) {
        const double angle = Reduced(thetas[i], position);
        // One rounding to float32 of a value that is right to about 1e-16; of rotations, to 1e-15.
        EXPECT_NEAR(cos[i], std::cos(angle), 0x1p-24 * std::abs(std::cos(angle)) + 1e-15)
            << position << " " << i;
        EXPECT_NEAR(sin[i], std::sin(angle), 0x1p-24 * std::abs(std::sin(angle)) + 1e-15)
            << position << " " << i;
      }
    }
  }
}

TEST(AnglesTest, RotationsDependOnThePositionAlone) {
  const Rotations rotations(PositionThetas(20));
  std::vector<float> cos(10), sin(10), cos_alone(10), sin_alone(10);
  Rotations::Start start;
  for (const int64_t position : {0, 1, 15, 16, 31, 5, 1000003, 1000008}) {
    rotations.CosSin(position, &start, cos.data(), sin.data());
    Rotations::Start fresh;
    rotations.CosSin(position, &fresh, cos_alone.data(), sin_alone.data());
    EXPECT_EQ(cos, cos_alone) << position;
    EXPECT_EQ(sin, sin_alone) << position;
  }
}

class PositionTest : public testing::BackendTest {};

TEST_P(PositionTest, RopeAndEmbedAtFiveMillion) {
  const auto backend = NewBackend(1);
  testing::Random random(1);
  const int d = 64;
  const std::vector<int64_t> positions = {5000000};
  const std::vector<float> thetas = RopeThetas(d);

  const std::vector<float> qkv = random.Normals(3 * d);
  std::vector<float> q(d), k(d);
  backend->Rope(qkv.data(), positions, {1, 1, d}, thetas, q.data(), k.data());
  for (int i = 0; i < d / 2; ++i) {
    const double angle = Reduced(thetas[i], 5000000);
    const double even = qkv[2 * i], odd = qkv[2 * i + 1];
    // Rounded cosine and sine, two products, a sum: 4 u (|even| + |odd|).
    const double tolerance = 4 * 0x1p-24 * (std::abs(even) + std::abs(odd));
    EXPECT_NEAR(q[i], even * std::cos(angle) - odd * std::sin(angle), tolerance) << i;
    EXPECT_NEAR(q[d / 2 + i], odd * std::cos(angle) + even * std::sin(angle), tolerance) << i;
  }

  const testing::HostWeights zero(std::vector<float>(d), 1, d, DataType::kF32);
  const auto table = backend->PackMatrix(zero.matrix(), true, DataType::kF32);
  const std::vector<float> position_thetas = PositionThetas(d);
  const std::vector<int32_t> tokens = {0};
  std::vector<float> row(d);
  backend->Embed(*table, tokens, positions, row.data());
  for (int i = 0; i < d / 2; ++i) {
    const double angle = Reduced(position_thetas[i], 5000000);
    EXPECT_NEAR(row[2 * i], std::sin(angle), 0x1p-24) << i;
    EXPECT_NEAR(row[2 * i + 1], std::cos(angle), 0x1p-24) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PositionTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
