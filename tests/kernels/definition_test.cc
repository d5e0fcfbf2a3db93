// The ops against their definitions in closed form: numbers that can be checked by hand, on every
// backend. The oracle itself has no other oracle for these.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/angles.h"
#include "kernels/backend.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::HostWeights;
using testing::Random;

class DefinitionTest : public testing::BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (!IsSkipped()) backend_ = NewBackend(1);
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(DefinitionTest, EmbedIsTableRowPlusSinusoids) {
  // V = 2, D = 4: theta_0 = 1, theta_1 = 10000^(-1/2) = 0.01. Sines in even columns.
  const HostWeights table({10, 20, 30, 40, 50, 60, 70, 80}, 2, 4, DataType::kF32);
  const auto packed = backend_->PackMatrix(table.matrix(), true, DataType::kF32);
  const std::vector<int32_t> tokens = {1, 0};
  const std::vector<int64_t> positions = {0, 3};
  float out[8];
  backend_->Embed(*packed, tokens, positions, out);
  const double want[8] = {50,
                          61,
                          70,
                          81,
                          10 + std::sin(3.0),
                          20 + std::cos(3.0),
                          30 + std::sin(0.03),
                          40 + std::cos(0.03)};
  for (int i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(out[i], want[i]) << i;
}

TEST_P(DefinitionTest, EmbedWithoutPositionsIsTheTableRow) {
  const HostWeights table({10, 20, 30, 40, 50, 60, 70, 80}, 2, 4, DataType::kF32);
  const auto packed = backend_->PackMatrix(table.matrix(), true, DataType::kF32);
  const std::vector<int32_t> tokens = {1, 0};
  std::vector<float> out(8);
  backend_->Embed(*packed, tokens, {}, out.data());
  EXPECT_EQ(out, (std::vector<float>{50, 60, 70, 80, 10, 20, 30, 40}));
}

TEST_P(DefinitionTest, LayerNormUsesTheBiasedVariance) {
  // Mean 2, squared deviations 1, 1: biased variance 1 (unbiased would be 2).
  const float x[2] = {1, 3}, scale[2] = {2, 3}, bias[2] = {10, 20};
  float out[2];
  backend_->Norm(x, 1, 2, {scale, bias}, out);
  EXPECT_FLOAT_EQ(out[0], 10 - 2 / std::sqrt(1.00001));
  EXPECT_FLOAT_EQ(out[1], 20 + 3 / std::sqrt(1.00001));
  // Epsilon inside the root: a constant row gives the bias.
  const float constant[2] = {7, 7};
  backend_->Norm(constant, 1, 2, {scale, bias}, out);
  EXPECT_EQ(out[0], 10);
  EXPECT_EQ(out[1], 20);
}

TEST_P(DefinitionTest, RmsNormHasNoMean) {
  // Mean square (9 + 16) / 2 = 12.5; epsilon 2.5 inside the root: sqrt(15).
  const float x[2] = {3, 4}, scale[2] = {2, -1};
  float out[2];
  backend_->Norm(x, 1, 2, {scale, nullptr, NormKind::kRms, 2.5f}, out);
  EXPECT_FLOAT_EQ(out[0], 6 / std::sqrt(15.0));
  EXPECT_FLOAT_EQ(out[1], -4 / std::sqrt(15.0));
}

TEST_P(DefinitionTest, MatMulIsRowTimesMatrix) {
  const HostWeights w({1, 2, 3, 4, 5, 6}, 2, 3, DataType::kF32);
  const auto packed = backend_->PackMatrix(w.matrix(), false, DataType::kF32);
  const float x[4] = {1, 10, 2, -1}, bias[3] = {100, 200, 300};
  float out[6] = {1000, 2000, 3000, 4000, 5000, 6000};
  backend_->MatMul(x, 2, *packed, nullptr, false, out);
  EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{41, 52, 63, -2, -1, 0}));
  backend_->MatMul(x, 2, *packed, bias, true, out);
  EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{182, 304, 426, 96, 198, 300}));
}

TEST_P(DefinitionTest, RopeTakesPairsAndGivesHalves) {
  // d = 4: theta = 1, 0.01. One head; q = (1, 0, 0, 1), k = (0, 1, 1, 0).
  const float qkv[12] = {1, 0, 0, 1, 0, 1, 1, 0, 9, 9, 9, 9};
  const std::vector<int64_t> positions = {2};
  float q[4], k[4];
  backend_->Rope(qkv, positions, {1, 1, 4}, RopeThetas(4), q, k);
  const double want_q[4] = {std::cos(2.0), -std::sin(0.02), std::sin(2.0), std::cos(0.02)};
  const double want_k[4] = {-std::sin(2.0), std::cos(0.02), std::cos(2.0), std::sin(0.02)};
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(q[i], want_q[i]) << i;
    EXPECT_FLOAT_EQ(k[i], want_k[i]) << i;
  }
}

TEST_P(DefinitionTest, RopeTakesTheThetasItIsGiven) {
  // Two heads of queries, then one of keys, then one of values; theta = 0.5.
  const float qkv[8] = {1, 0, 0, 1, 2, 3, 9, 9};
  const std::vector<int64_t> positions = {3};
  const std::vector<float> thetas = {0.5f};
  float q[4], k[2];
  backend_->Rope(qkv, positions, {2, 1, 2}, thetas, q, k);
  const double c = std::cos(1.5), s = std::sin(1.5), want_q[4] = {c, s, -s, c};
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(q[i], want_q[i]) << i;
  EXPECT_FLOAT_EQ(k[0], 2 * c - 3 * s);
  EXPECT_FLOAT_EQ(k[1], 3 * c + 2 * s);
  backend_->Rope(qkv, positions, {2, 1, 2}, {}, q, k);
  EXPECT_EQ(std::vector<float>(q, q + 4), (std::vector<float>{1, 0, 0, 1}));
  EXPECT_EQ(std::vector<float>(k, k + 2), (std::vector<float>{2, 3}));
}

TEST_P(DefinitionTest, NormsBeforeRopeAreRotated) {
  // One head of queries (3, 4) and one of keys (0, 2), RMS norms: (3, 4) / sqrt(12.5), (0, sqrt 2).
  const float qkv[6] = {3, 4, 0, 2, 9, 9}, q_scale[2] = {1, 2}, k_scale[2] = {5, 1};
  const std::vector<int64_t> positions = {2};
  const std::vector<float> thetas = {1};
  const HeadNorms norms{{q_scale, nullptr, NormKind::kRms, 0},
                        {k_scale, nullptr, NormKind::kRms, 0},
                        /*before_rotation=*/true};
  float q[2], k[2];
  backend_->RopeAndNorms(qkv, positions, {1, 1, 2}, thetas, norms, nullptr, nullptr, q, k);
  const double c = std::cos(2.0), s = std::sin(2.0), root = std::sqrt(12.5);
  // Each element of a norm takes at most five roundings, then a product and a sum.
  const double tolerance = 7 * 0x1p-24 * (3 + 8) / root;
  EXPECT_NEAR(q[0], (3 * c - 8 * s) / root, tolerance);
  EXPECT_NEAR(q[1], (8 * c + 3 * s) / root, tolerance);
  EXPECT_NEAR(k[0], -std::sqrt(2.0) * s, tolerance);
  EXPECT_NEAR(k[1], std::sqrt(2.0) * c, tolerance);
}

TEST_P(DefinitionTest, SiluIsXTimesTheLogisticFunction) {
  // silu(1) = 1 / (1 + 1 / e) = 0.7310585786, silu(-1) = -0.2689414214.
  const float up[4] = {2, -3, 1, -1};
  float out[2];
  backend_->Gate(GateKind::kSilu, up, 1, 2, out);
  EXPECT_FLOAT_EQ(out[0], 2 * 0.7310585786);
  EXPECT_FLOAT_EQ(out[1], -3 * -0.2689414214);
}

TEST_P(DefinitionTest, GeluIsTheTanhForm) {
  // gelu(1) = 0.5 (1 + tanh(sqrt(2 / pi) 1.044715)) = 0.8411920; the erf form gives 0.8413447.
  const float up[4] = {2, -3, 1, -1};
  float out[2];
  backend_->Gate(GateKind::kGelu, up, 1, 2, out);
  EXPECT_NEAR(out[0], 2 * 0.84119199, 5e-7);
  EXPECT_NEAR(out[1], -3 * -0.15880801, 5e-7);
  // Without a gate, of every element.
  float ungated[4];
  backend_->Gate(GateKind::kUngatedGelu, up, 2, 2, ungated);
  EXPECT_NEAR(ungated[0], 1.95459769, 5e-7);
  EXPECT_NEAR(ungated[1], -0.00363739, 5e-7);
  EXPECT_NEAR(ungated[2], 0.84119199, 5e-7);
  EXPECT_NEAR(ungated[3], -0.15880801, 5e-7);
}

TEST_P(DefinitionTest, LinearFeaturesAreEluPlusOne) {
  const float x[4] = {2, 0, -1, -5};
  float out[4];
  backend_->LinearFeatures(x, 1, 4, nullptr, 1, out);
  const double want[4] = {3, 1, std::exp(-1.0), std::exp(-5.0)};
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(out[i], want[i]) << i;
  const float factors[2] = {2, -3};
  backend_->LinearFeatures(x, 2, 2, factors, 2, out);
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(out[i], factors[i / 2] * want[i]) << i;
}

TEST_P(DefinitionTest, PerformerFeaturesArePositiveFeatures) {
  // d = 4: x' = x / sqrt 2. Omega has rows (1, 0, 0, 0) and (0, 2, 0, 0), stored [m, d].
  const HostWeights omega({1, 0, 0, 0, 0, 2, 0, 0}, 2, 4, DataType::kF32);
  const auto packed = backend_->PackMatrix(omega.matrix(), true, DataType::kF32);
  const float x[4] = {1, 2, 0, 0};
  float out[2];
  backend_->PerformerFeatures(*packed, x, 1, out);
  const double half_norm = (1 + 4) / 2.0 / 2;
  EXPECT_FLOAT_EQ(out[0], std::exp(1 / std::sqrt(2) - half_norm) / std::sqrt(2));
  EXPECT_FLOAT_EQ(out[1], std::exp(4 / std::sqrt(2) - half_norm) / std::sqrt(2));
}

TEST_P(DefinitionTest, AffineFeaturesHaveAffineDotProducts) {
  // Two heads of width 2: (c + f x.y) of row m with the terms of head m % 2.
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, terms[4] = {10, 2, -1, 0.5f};
  float q[32], k[32];
  backend_->AffineFeatures(x, 4, 2, terms, 2, q);
  backend_->AffineFeatures(x, 4, 2, nullptr, 2, k);
  const float want_q[4][3] = {{10, 2, 4}, {-1, 1.5f, 2}, {10, 10, 12}, {-1, 3.5f, 4}};
  for (int m = 0; m < 4; ++m) {
    EXPECT_EQ(k[m * 8], 1);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(q[m * 8 + i], want_q[m][i]) << m << " " << i;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(k[m * 8 + 1 + i], x[m * 2 + i]) << m << " " << i;
    for (int i = 3; i < 8; ++i) EXPECT_TRUE(q[m * 8 + i] == 0 && k[m * 8 + i] == 0) << "padding";
  }
}

TEST_P(DefinitionTest, HeadMapsAreAffineMapsOfEachHead) {
  // Two tokens of two heads of width 2: element j of head h is (h + 1) x0 + j x1 + 100 h.
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float maps[64], biases[32], out[64];
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 16; ++j) {
      maps[h * 32 + j] = static_cast<float>(h + 1);
      maps[h * 32 + 16 + j] = static_cast<float>(j);
      biases[h * 16 + j] = 100.0f * h;
    }
  }
  backend_->HeadMaps(x, 2, 2, 2, maps, biases, 16, out);
  for (int m = 0; m < 4; ++m) {
    for (int j = 0; j < 16; ++j) {
      EXPECT_EQ(out[m * 16 + j], (m % 2 + 1) * x[2 * m] + j * x[2 * m + 1] + 100 * (m % 2))
          << m << " " << j;
    }
  }
}

TEST_P(DefinitionTest, LogSumExpOfEqualEntries) {
  const float x[8] = {5, 5, 5, 5, -1000, -1000, -1000, -1000};
  float out[2];
  backend_->LogSumExp(x, 2, 4, out);
  EXPECT_FLOAT_EQ(out[0], 5 + std::log(4.0));
  EXPECT_FLOAT_EQ(out[1], -1000 + std::log(4.0));
}

TEST_P(DefinitionTest, LogSigmoidOfSmallAndLargeNumbers) {
  const float x[5] = {0, 12, -2, 80, -300};
  float out[5];
  backend_->LogSigmoid(x, 5, out);
  const double want[5] = {-std::log(2.0), -std::log1p(std::exp(-12.0)),
                          -2 - std::log1p(std::exp(-2.0)), -std::exp(-80.0), -300};
  for (int i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(out[i], want[i]) << i;
}

TEST_P(DefinitionTest, RandomSketchOfDegreeTwoAndFour) {
  // d = 2, r = 1: matrices are columns. degree 2: (x A0) (x A1).
  const std::vector<float> a[4] = {{1, 2}, {3, -1}, {0, 1}, {2, 2}};
  const float x[2] = {2, 5};  // products: 12, 1, 5, 14
  float out[8];
  const testing::SketchWeights two(2, 1, {a[0], a[1]});
  backend_->ApplyRandomSketch(two.Pack(*backend_, DataType::kF32)->sketch, x, 1, out);
  EXPECT_EQ(out[0], 12);
  for (int i = 1; i < 8; ++i) EXPECT_EQ(out[i], 0) << "padding";
  // Degree 4: (M1 G0) (M2 G1), M1 = 12 * 1, M2 = 5 * 14.
  const testing::SketchWeights four(2, 1, {a[0], a[1], a[2], a[3]}, {{3}, {-0.5}});
  backend_->ApplyRandomSketch(four.Pack(*backend_, DataType::kF32)->sketch, x, 1, out);
  EXPECT_EQ(out[0], 12 * 3 * 70 * -0.5);
}

TEST_P(DefinitionTest, RandomSketchOfDegreeFourIsTwoOfDegreeTwo) {
  Random random(1);
  const int d = 10, r = 7;
  std::vector<std::vector<float>> a, g;
  for (int i = 0; i < 4; ++i) a.push_back(random.Normals(d * r));
  for (int i = 0; i < 2; ++i) g.push_back(random.Normals(r * r));
  const std::vector<float> x = random.Normals(d);
  // M_j[i] = (x A_2j)[i] (x A_2j+1)[i]; f[i] = (M_0 G_0)[i] (M_1 G_1)[i].
  const auto product = [&](const std::vector<double>& row, const std::vector<float>& w) {
    std::vector<double> y(r);
    for (size_t k = 0; k < row.size(); ++k) {
      for (int i = 0; i < r; ++i) y[i] += row[k] * w[k * r + i];
    }
    return y;
  };
  std::vector<double> half[2];
  double bound = 0;
  for (int j = 0; j < 2; ++j) {
    const std::vector<double> row(x.begin(), x.end());
    std::vector<double> m = product(row, a[2 * j]);
    const std::vector<double> right = product(row, a[2 * j + 1]);
    for (int i = 0; i < r; ++i) m[i] *= right[i];
    half[j] = product(m, g[j]);
    for (const double value : half[j]) bound = std::max(bound, value * value);
  }
  float out[8];
  const testing::SketchWeights sketch(d, r, a, g);
  backend_->ApplyRandomSketch(sketch.Pack(*backend_, DataType::kF32)->sketch, x.data(), 1, out);
  for (int i = 0; i < r; ++i) EXPECT_NEAR(out[i], half[0][i] * half[1][i], 1e-5 * bound) << i;
  EXPECT_EQ(out[7], 0) << "padding";
}

TEST_P(DefinitionTest, LearnedSketchStaysBelowSqrtR) {
  // Weights so large that tanh saturates: every output is +-sqrt(r), padding is zero.
  Random random(2);
  const int d = 6, r = 3;
  const testing::NetworkWeights weights(d, r, DataType::kF32, &random, 1000);
  const auto net = weights.Pack(*backend_, DataType::kF32);
  const std::vector<float> x = random.Normals(d);
  float out[8];
  backend_->LearnedSketch(net->network, x.data(), 1, out);
  for (int i = 0; i < r; ++i) EXPECT_FLOAT_EQ(std::abs(out[i]), std::sqrt(3.0)) << i;
  for (int i = r; i < 8; ++i) EXPECT_EQ(out[i], 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, DefinitionTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
