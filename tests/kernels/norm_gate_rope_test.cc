// Norms, gates and rotations of every frame, on every instruction set and on the cuda backend
// (tests/cuda/CMakeLists.txt): against the reference, whose error is one rounding, and fused ops against
// the ops that they consist of, to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/angles.h"
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "tests/kernels/noisy.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Exact;
using testing::HostWeights;
using testing::kDeviations;
using testing::kU;
using testing::Noisy;
using testing::Random;
using Floats = std::vector<float>;

class NormGateRopeTest : public testing::IsaTest {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    if (!IsSkipped()) cpu_ = NewBackend(2);
  }
  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Backend> reference_ = NewReferenceBackend();
};

::testing::AssertionResult SameBits(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << ", " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << ", " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

TEST_P(NormGateRopeTest, RmsNorm) {
  Random random(1);
  for (const int width : {1, 3, 8, 16, 31, 32, 33, 64, 100, 128, 576, 2049}) {
    const Floats scale = random.Normals(width, 0.3, 1);
    for (const float epsilon : {1e-6f, 1e-5f, 0.25f}) {
      const NormWeights norm{scale.data(), nullptr, NormKind::kRms, epsilon};
      for (const int rows : {1, 2, 7, 33}) {
        for (const double magnitude : {1e-3, 1.0, 1e4}) {
          const std::string what = StrCat(rows, "x", width, " of ", magnitude, ", ", epsilon);
          const Floats x = random.Normals(rows * width, magnitude, magnitude / 2);
          Floats got(x.size()), want(x.size());
          cpu_->Norm(x.data(), rows, width, norm, got.data());
          reference_->Norm(x.data(), rows, width, norm, want.data());
          for (int m = 0; m < rows; ++m) {
            const testing::NoisyRow row =
                testing::NoisyNorm(Exact(x.data() + m * width, width), norm);
            for (int i = 0; i < width; ++i) {
              ASSERT_NEAR(got[m * width + i], want[m * width + i],
                          kDeviations * row[i].error + kU * std::abs(row[i].value))
                  << what << " row " << m << " element " << i;
            }
            Floats alone(width);
            cpu_->Norm(x.data() + m * width, 1, width, norm, alone.data());
            EXPECT_TRUE(
                SameBits(alone, Floats(got.begin() + m * width, got.begin() + (m + 1) * width)))
                << what;
          }
          Floats in_place = x;
          cpu_->Norm(in_place.data(), rows, width, norm, in_place.data());
          EXPECT_TRUE(SameBits(in_place, got)) << what;
        }
      }
    }
  }
}

// Another epsilon of a layer norm.
TEST_P(NormGateRopeTest, LayerNormWithAnEpsilon) {
  Random random(2);
  for (const int width : {5, 32, 100}) {
    const Floats scale = random.Normals(width, 0.3, 1), bias = random.Normals(width);
    const NormWeights norm{scale.data(), bias.data(), NormKind::kLayer, 0.5f};
    const Floats x = random.Normals(width);
    Floats got(width), want(width);
    cpu_->Norm(x.data(), 1, width, norm, got.data());
    reference_->Norm(x.data(), 1, width, norm, want.data());
    const testing::NoisyRow row = testing::NoisyNorm(Exact(x.data(), width), norm);
    for (int i = 0; i < width; ++i) {
      ASSERT_NEAR(got[i], want[i], kDeviations * row[i].error + kU * std::abs(row[i].value));
    }
  }
}

TEST_P(NormGateRopeTest, SiluGate) {
  Random random(3);
  for (const int hidden : {1, 3, 8, 31, 33, 512}) {
    for (const int rows : {1, 2, 9}) {
      Floats up = random.Normals(rows * 2 * hidden, 3);
      // Where silu is g or next to 0.
      up[hidden] = 100;
      up[2 * hidden - 1] = -100;
      if (hidden > 3) up[hidden + 1] = -86.5f;
      Floats got(rows * hidden), want(rows * hidden);
      cpu_->Gate(GateKind::kSilu, up.data(), rows, hidden, got.data());
      reference_->Gate(GateKind::kSilu, up.data(), rows, hidden, want.data());
      for (int m = 0; m < rows; ++m) {
        for (int i = 0; i < hidden; ++i) {
          // An exponential that is off by 4 u (its polynomial 1.6 u, its last two operations, f), a
          // sum, a quotient, a product and the reference's rounding. Far out e^-g is not that of g.
          const double u = up[m * 2 * hidden + i], g = up[m * 2 * hidden + hidden + i];
          const double wanted = want[m * hidden + i];
          ASSERT_NEAR(got[m * hidden + i], wanted,
                      8 * kU * std::abs(wanted) + 2e-38 * std::abs(u * g))
              << rows << "x" << hidden << " row " << m << " element " << i;
        }
      }
    }
  }
}

struct Rotation {
  HeadShape shape;
  Floats thetas;
};

std::vector<Rotation> Rotations() {
  Floats scaled = RopeThetas(64, 500000);
  for (float& theta : scaled) theta /= 8;
  return {{{9, 3, 64}, RopeThetas(64)},
          {{4, 2, 64}, scaled},
          {{6, 1, 34}, RopeThetas(34, 100000)},
          {{3, 3, 8}, {}},
          {{8, 2, 7}, {}}};
}

TEST_P(NormGateRopeTest, Rope) {
  Random random(4);
  const std::vector<int64_t> positions = {0, 1, 77, 4096, 1000003};
  const auto rows = std::ssize(positions);
  for (const auto& [shape, thetas] : Rotations()) {
    const Floats qkv = random.Normals(rows * shape.row());
    Floats q(rows * shape.q_row()), k(rows * shape.k_row()), want_q(q), want_k(k);
    cpu_->Rope(qkv.data(), positions, shape, thetas, q.data(), k.data());
    reference_->Rope(qkv.data(), positions, shape, thetas, want_q.data(), want_k.data());
    if (thetas.empty()) {  // heads are copied
      EXPECT_TRUE(SameBits(q, want_q) && SameBits(k, want_k));
      EXPECT_TRUE(SameBits(Floats(q.begin(), q.begin() + shape.q_row()),
                           Floats(qkv.begin(), qkv.begin() + shape.q_row())));
      continue;
    }
    // Two products and a sum of terms that are below the largest element.
    const float largest = std::abs(
        *std::ranges::max_element(qkv, [](float a, float b) { return std::abs(a) < std::abs(b); }));
    for (size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(q[i], want_q[i], 6 * kU * largest) << i;
    for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(k[i], want_k[i], 6 * kU * largest) << i;
    // Each head is rotated alone, as the only one.
    const HeadShape one{1, 1, shape.head_dim};
    for (int64_t m = 0; m < rows; ++m) {
      for (int h = 0; h < shape.heads; ++h) {
        const int64_t kv_head = h % shape.kv_heads, d = shape.head_dim;
        Floats alone(qkv.begin() + m * shape.row() + h * d,
                     qkv.begin() + m * shape.row() + (h + 1) * d);
        const auto key = qkv.begin() + m * shape.row() + shape.q_row() + kv_head * d;
        alone.insert(alone.end(), key, key + d);
        alone.resize(3 * d);
        Floats alone_q(d), alone_k(d);
        cpu_->Rope(alone.data(), {&positions[m], 1}, one, thetas, alone_q.data(), alone_k.data());
        const auto at_q = q.begin() + m * shape.q_row() + h * d;
        const auto at_k = k.begin() + m * shape.k_row() + kv_head * d;
        ASSERT_TRUE(SameBits(alone_q, Floats(at_q, at_q + d)));
        ASSERT_TRUE(SameBits(alone_k, Floats(at_k, at_k + d)));
      }
    }
  }
}

// Equal thetas at another address are the same, and other thetas at the same address are not.
TEST_P(NormGateRopeTest, AnglesFollowTheThetas) {
  Random random(5);
  const HeadShape shape{1, 1, 16};
  const std::vector<int64_t> positions = {5};
  const Floats qkv = random.Normals(shape.row());
  Floats thetas = RopeThetas(16), q(16), k(16), other_q(16), again(16);
  cpu_->Rope(qkv.data(), positions, shape, thetas, q.data(), k.data());
  for (float& theta : thetas) theta /= 2;
  cpu_->Rope(qkv.data(), positions, shape, thetas, other_q.data(), k.data());
  EXPECT_FALSE(SameBits(other_q, q));
  cpu_->Rope(qkv.data(), positions, shape, RopeThetas(16), again.data(), k.data());
  EXPECT_TRUE(SameBits(again, q));
}

TEST_P(NormGateRopeTest, RopeAndNormsHaveTheBitsOfBothOps) {
  Random random(6);
  const std::vector<int64_t> positions = {0, 1, 77, 4096, 5000000};
  const auto rows = std::ssize(positions);
  for (const auto& [shape, thetas] : Rotations()) {
    const int d = shape.head_dim;
    const Floats qkv = random.Normals(rows * shape.row()), bias = random.Normals(d);
    const Floats scales[2] = {random.Normals(d, 0.3, 1), random.Normals(d, 0.3, 1)};
    for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
      const float* bias_or_null = kind == NormKind::kLayer ? bias.data() : nullptr;
      HeadNorms norms{{scales[0].data(), bias_or_null, kind, 1e-6f},
                      {scales[1].data(), bias_or_null, kind, 1e-6f}};
      Floats want_q(rows * shape.q_row()), want_k(rows * shape.k_row());
      Floats q(want_q), k(want_k), got_q(want_q), got_k(want_k);
      const auto norm_heads = [&](const Floats& x, int64_t heads, const NormWeights& norm) {
        Floats out(x.size());
        cpu_->Norm(x.data(), heads, d, norm, out.data());
        return out;
      };
      cpu_->Rope(qkv.data(), positions, shape, thetas, want_q.data(), want_k.data());
      cpu_->RopeAndNorms(qkv.data(), positions, shape, thetas, norms, q.data(), k.data(),
                         got_q.data(), got_k.data());
      EXPECT_TRUE(SameBits(q, want_q) && SameBits(k, want_k));
      EXPECT_TRUE(SameBits(got_q, norm_heads(want_q, rows * shape.heads, norms.q)));
      EXPECT_TRUE(SameBits(got_k, norm_heads(want_k, rows * shape.kv_heads, norms.k)));

      norms.before_rotation = true;
      Floats normed = qkv;
      for (int64_t m = 0; m < rows; ++m) {
        float* heads = normed.data() + m * shape.row();
        float* keys = heads + shape.q_row();
        cpu_->Norm(heads, shape.heads, d, norms.q, heads);
        cpu_->Norm(keys, shape.kv_heads, d, norms.k, keys);
      }
      cpu_->Rope(normed.data(), positions, shape, thetas, want_q.data(), want_k.data());
      cpu_->RopeAndNorms(qkv.data(), positions, shape, thetas, norms, nullptr, nullptr,
                         got_q.data(), got_k.data());
      EXPECT_TRUE(SameBits(got_q, want_q)) << d;
      EXPECT_TRUE(SameBits(got_k, want_k)) << d;
      // An element is that of two normed ones times a sine and a cosine.
      reference_->RopeAndNorms(qkv.data(), positions, shape, thetas, norms, nullptr, nullptr,
                               want_q.data(), want_k.data());
      for (int64_t m = 0; m < rows; ++m) {
        for (int h = 0; h < shape.heads + shape.kv_heads; ++h) {
          const bool is_query = h < shape.heads;
          const float* head = qkv.data() + m * shape.row() + int64_t{h} * d;
          double error = 0, largest = 0;
          for (const Noisy& y : testing::NoisyNorm(Exact(head, d), is_query ? norms.q : norms.k)) {
            error = std::max(error, kDeviations * y.error + kU * std::abs(y.value));
            largest = std::max(largest, std::abs(y.value));
          }
          const int64_t at = is_query ? m * shape.q_row() + int64_t{h} * d
                                      : m * shape.k_row() + int64_t{h - shape.heads} * d;
          for (int i = 0; i < d; ++i) {
            ASSERT_NEAR((is_query ? got_q : got_k)[at + i], (is_query ? want_q : want_k)[at + i],
                        2 * error + 6 * kU * largest);
          }
        }
      }
    }
  }
}

// With few rows and many, whose products may be gated in registers.
TEST_P(NormGateRopeTest, MlpHasTheBitsOfItsOps) {
  Random random(7);
  for (const auto& [width, hidden] : {std::pair(64, 96), std::pair(40, 33)}) {
    const Floats up_values = random.Normals(size_t{2} * width * hidden, 0.2),
                 down_values = random.Normals(size_t{1} * width * hidden, 0.2);
    const Floats scale = random.Normals(width, 0.3, 1), norm_bias = random.Normals(width);
    const Floats up_bias = random.Normals(2 * hidden), down_bias = random.Normals(width);
    for (const DataType type :
         {DataType::kF32, DataType::kBf16, DataType::kF16, DataType::kQ8, DataType::kQ4}) {
      const HostWeights down_weights(down_values, hidden, width, DataType::kF32);
      const auto down = cpu_->PackMatrix(down_weights.matrix(), false, type);
      for (const GateKind gate : {GateKind::kGelu, GateKind::kSilu, GateKind::kUngatedGelu}) {
        const int64_t columns = UpColumns(gate, hidden);
        const HostWeights up_weights({up_values.begin(), up_values.begin() + width * columns},
                                     width, columns, DataType::kF32);
        const auto up = cpu_->PackMatrix(up_weights.matrix(), false, type);
        for (const int biases : {0, 1, 2, 3}) {
          const NormKind kind = gate == GateKind::kGelu ? NormKind::kLayer : NormKind::kRms;
          const MlpWeights mlp{
              {scale.data(), kind == NormKind::kLayer ? norm_bias.data() : nullptr, kind, 1e-6f},
              up.get(),
              down.get(),
              gate,
              (biases & 1) != 0 ? up_bias.data() : nullptr,
              (biases & 2) != 0 ? down_bias.data() : nullptr};
          for (const int rows : {1, 5, 12, 37}) {
            const Floats x = random.Normals(rows * width);
            Floats scratch(static_cast<size_t>(rows) * (width + 3 * hidden));
            Floats got = x;
            cpu_->Mlp(mlp, rows, got.data(), scratch.data());
            Floats normed(rows * width), both(rows * columns), gated(rows * hidden), want = x;
            cpu_->Norm(x.data(), rows, width, mlp.norm, normed.data());
            cpu_->MatMul(normed.data(), rows, *up, mlp.up_bias, false, both.data());
            cpu_->Gate(gate, both.data(), rows, hidden, gated.data());
            cpu_->MatMul(gated.data(), rows, *down, mlp.down_bias, true, want.data());
            EXPECT_FALSE(SameBits(want, x));
            EXPECT_TRUE(SameBits(got, want))
                << DataTypeName(type) << " " << rows << "x" << width << "x" << hidden << " gate "
                << static_cast<int>(gate) << " biases " << biases;
            cpu_->NormMatMul(x.data(), rows, mlp.norm, *up, mlp.up_bias, scratch.data(),
                             scratch.data() + rows * width);
            const auto product = scratch.begin() + rows * width;
            EXPECT_TRUE(SameBits(Floats(product, product + rows * columns), both));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, NormGateRopeTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
