// Every op of the cpu backend, on every instruction set, against the reference: odd sizes,
// unaligned arrays, all weight types. The reference rounds an exact result once, so a tolerance is
// the error bound of the kernel alone, plus that rounding; where it comes from stands beside it.
// (Attention: attention_test.cc.)
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "base/half.h"
#include "kernels/angles.h"
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "kernels/reference/matrix.h"
#include "tests/kernels/head_maps_error.h"
#include "tests/kernels/noisy_sketch.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"
#include "tests/testing/guarded_floats.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Exact;
using testing::GuardedFloats;
using testing::HostWeights;
using testing::kDeviations;
using testing::kU;
using testing::Noisy;
using testing::NoisyRow;
using testing::Random;

constexpr DataType kTypes[] = {DataType::kF32, DataType::kF16, DataType::kBf16};

class OpTest : public testing::IsaTest {
 protected:
  void SetUp() override {
    IsaTest::SetUp();
    if (!IsSkipped()) cpu_ = NewBackend(2);
  }

  std::unique_ptr<const Matrix> Pack(Backend& backend, const HostWeights& w, bool transpose,
                                     DataType type) {
    return backend.PackMatrix(w.matrix(), transpose, type);
  }

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Backend> reference_ = NewReferenceBackend();
};

// |got - want| <= tolerance(i) for every element.
void ExpectClose(const GuardedFloats& got, const GuardedFloats& want,
                 const std::function<double(size_t)>& tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    ASSERT_LE(error, tolerance(i)) << what << " at " << i << ": " << got[i] << ", not " << want[i];
  }
}

TEST_P(OpTest, PackMatrixConvertsLikeTheReference) {
  Random random(1);
  // Rows of the identity pick rows of the matrix, exactly.
  for (const auto& [in, out] : {std::pair(5, 37), std::pair(33, 64), std::pair(1, 1)}) {
    std::vector<float> values = random.Normals(in * out);
    values[0] = 3e-6f;  // subnormal in f16
    std::vector<float> identity(in * in);
    for (int i = 0; i < in; ++i) identity[i * in + i] = 1;
    for (const DataType from : kTypes) {
      for (const DataType to : kTypes) {
        for (const bool transpose : {false, true}) {
          const HostWeights w(values, transpose ? out : in, transpose ? in : out, from);
          const auto packed = Pack(*cpu_, w, transpose, to);
          const auto expected = Pack(*reference_, w, transpose, to);
          EXPECT_EQ(packed->in(), in);
          EXPECT_EQ(packed->out(), out);
          EXPECT_EQ(packed->type(), to);
          GuardedFloats got(in * out), want(in * out);
          cpu_->MatMul(identity.data(), in, *packed, nullptr, false, got.data());
          reference_->MatMul(identity.data(), in, *expected, nullptr, false, want.data());
          ExpectClose(
              got, want, [](size_t) { return 0; },
              StrCat(DataTypeName(from), " to ", DataTypeName(to)));
        }
      }
    }
  }
}

TEST_P(OpTest, MatMul) {
  Random random(2);
  const std::pair<int, int> shapes[] = {{1, 1},    {3, 8},    {8, 3},     {31, 33},
                                        {33, 31},  {64, 192}, {192, 97},  {100, 70},
                                        {512, 65}, {24, 128}, {129, 1056}};
  for (const auto& shape : shapes) {
    // No bindings: clang 14 lets no lambda capture them.
    const int in = shape.first, out = shape.second;
    const std::vector<float> values = random.Normals(in * out);
    const GuardedFloats bias(random.Normals(out));
    for (const DataType type : kTypes) {
      const HostWeights w(values, in, out, type);
      const auto packed = Pack(*cpu_, w, false, type);
      const auto expected = Pack(*reference_, w, false, type);
      for (const int rows : {1, 2, 3, 5, 6, 7, 12, 13, 17, 40}) {
        std::vector<float> values_of_x = random.Normals(rows * in);
        if (RoundsToBf16(type)) {
          // The backend would round them: what it makes of rounded ones is as exact as elsewhere.
          for (float& value : values_of_x) value = Bf16ToFloat(FloatToBf16(value));
        }
        const GuardedFloats x(values_of_x);
        const std::vector<float> old = random.Normals(rows * out);
        const float* bias_or_null = rows % 2 == 0 ? bias.data() : nullptr;
        const bool accumulate = rows % 3 == 0;
        GuardedFloats got(old), want(old);
        cpu_->MatMul(x.data(), rows, *packed, bias_or_null, accumulate, got.data());
        reference_->MatMul(x.data(), rows, *expected, bias_or_null, accumulate, want.data());
        // n fused steps, two additions, and the reference's own rounding: gamma_{n+3} sum |a||b|.
        std::vector<double> absolute(rows * out);
        for (int m = 0; m < rows; ++m) {
          for (int o = 0; o < out; ++o) {
            double& sum = absolute[m * out + o];
            for (int i = 0; i < in; ++i) {
              sum += std::abs(x[m * in + i] * reference::Cast(*expected).at(i, o));
            }
            if (bias_or_null != nullptr) sum += std::abs(bias[o]);
            if (accumulate) sum += std::abs(old[m * out + o]);
          }
        }
        ExpectClose(
            got, want, [&](size_t i) { return (in + 3) * kU * absolute[i]; },
            StrCat("MatMul ", rows, "x", in, "x", out, " ", DataTypeName(type)));
      }
    }
  }
}

// What a row's activations are rounded to is the nearest bf16, and nothing else is rounded.
TEST_P(OpTest, MatMulRoundsActivationsToNearest) {
  if (!RoundsToBf16(DataType::kBf16)) GTEST_SKIP() << GetParam() << " takes them as they are";
  Random random(12);
  const int in = 97;
  std::vector<float> identity(in * in);
  for (int i = 0; i < in; ++i) identity[i * in + i] = 1;
  const auto packed = Pack(*cpu_, {identity, in, in, DataType::kF32}, false, DataType::kBf16);
  std::vector<float> x = random.Normals(3 * in);
  x[5] = 1 + 0x1p-8f;      // a tie: to even
  x[6] = 1 + 3 * 0x1p-8f;  // up
  GuardedFloats got(3 * in);
  cpu_->MatMul(x.data(), 3, *packed, nullptr, false, got.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(got[i], Bf16ToFloat(FloatToBf16(x[i]))) << i;
}

TEST_P(OpTest, Embed) {
  Random random(3);
  for (const int width : {2, 6, 64, 192, 200}) {
    const int vocab = 77;
    for (const DataType type : kTypes) {
      const HostWeights w(random.Normals(vocab * width), vocab, width, type);
      const auto packed = Pack(*cpu_, w, true, type);
      const auto expected = Pack(*reference_, w, true, type);
      const std::vector<int64_t> positions = {0, 1, 2, 511, 70000, 5000000, 123456789012};
      std::vector<int32_t> tokens;
      for (size_t i = 0; i < positions.size(); ++i) tokens.push_back(random.Int(0, vocab - 1));
      tokens[0] = vocab - 1;
      GuardedFloats got(tokens.size() * width), want(tokens.size() * width);
      cpu_->Embed(*packed, tokens, positions, got.data());
      reference_->Embed(*expected, tokens, positions, want.data());
      // The sine may differ in its last bit (below 1), then one addition.
      ExpectClose(
          got, want, [&](size_t i) { return 2 * kU * (1 + std::abs(want[i])); },
          StrCat("Embed ", width));
    }
  }
}

TEST_P(OpTest, LayerNorm) {
  Random random(4);
  for (const int width : {1, 3, 8, 31, 32, 33, 64, 100, 192, 768}) {
    const std::vector<float> scale = random.Normals(width, 0.3, 1);
    const std::vector<float> bias = random.Normals(width);
    const NormWeights norm{scale.data(), bias.data()};
    for (const int rows : {1, 2, 7, 33}) {
      // A mean well away from zero, where a one-pass variance would fail, and rows of very
      // different size.
      for (const double magnitude : {1e-3, 1.0, 1e4}) {
        const GuardedFloats x(random.Normals(rows * width, magnitude, 5 * magnitude));
        GuardedFloats got(rows * width), want(rows * width);
        cpu_->Norm(x.data(), rows, width, norm, got.data());
        reference_->Norm(x.data(), rows, width, norm, want.data());
        std::vector<double> tolerance;
        for (int m = 0; m < rows; ++m) {
          for (const Noisy& y : testing::NoisyNorm(Exact(x.data() + m * width, width), norm)) {
            tolerance.push_back(kDeviations * y.error + kU * std::abs(y.value));
          }
        }
        const std::string what = StrCat("LayerNorm ", rows, "x", width, " of ", magnitude);
        ExpectClose(
            got, want, [&](size_t i) { return tolerance[i]; }, what);

        std::vector<float> in_place(x.data(), x.data() + x.size());
        cpu_->Norm(in_place.data(), rows, width, norm, in_place.data());
        EXPECT_EQ(std::memcmp(in_place.data(), got.data(), got.size() * sizeof(float)), 0) << what;
      }
    }
  }
}

TEST_P(OpTest, Rope) {
  Random random(5);
  for (const int head_dim : {2, 6, 8, 32, 34, 64, 128}) {
    for (const int heads : {1, 3}) {
      const std::vector<int64_t> positions = {0, 1, 77, 4096, 1000003, 5000000, 987654321};
      const int width = heads * head_dim;
      const int rows = static_cast<int>(positions.size());
      const GuardedFloats qkv(random.Normals(rows * 3 * width));
      GuardedFloats q(rows * width), k(rows * width), want_q(rows * width), want_k(rows * width);
      const HeadShape shape{heads, heads, head_dim};
      const std::vector<float> thetas = RopeThetas(head_dim);
      cpu_->Rope(qkv.data(), positions, shape, thetas, q.data(), k.data());
      reference_->Rope(qkv.data(), positions, shape, thetas, want_q.data(), want_k.data());
      // Two products and a sum; each pair keeps its length, so the terms are below sqrt(2) max.
      double largest = 0;
      for (size_t i = 0; i < qkv.size(); ++i) largest = std::max<double>(largest, std::abs(qkv[i]));
      const auto tolerance = [&](size_t) { return 6 * kU * largest; };
      ExpectClose(q, want_q, tolerance, StrCat("Rope q ", heads, "x", head_dim));
      ExpectClose(k, want_k, tolerance, StrCat("Rope k ", heads, "x", head_dim));
    }
  }
}

TEST_P(OpTest, RopeAndNormsHaveTheBitsOfBothOps) {
  Random random(12);
  const std::vector<int64_t> positions = {0, 1, 77, 4096, 5000000};
  const auto rows = std::ssize(positions);
  for (const int head_dim : {2, 34, 64}) {
    const int heads = 3;
    const int64_t size = rows * heads * head_dim;
    const GuardedFloats qkv(random.Normals(3 * size)), scale(random.Normals(head_dim, 0.3, 1)),
        bias(random.Normals(head_dim));
    const NormWeights q_norm{scale.data(), bias.data()}, k_norm{bias.data(), scale.data()};
    GuardedFloats q(size), k(size), normed_q(size), normed_k(size);
    const HeadShape shape{heads, heads, head_dim};
    const std::vector<float> thetas = RopeThetas(head_dim);
    const HeadNorms norms{q_norm, k_norm};
    cpu_->RopeAndNorms(qkv.data(), positions, shape, thetas, norms, q.data(), k.data(),
                       normed_q.data(), normed_k.data());
    GuardedFloats want_q(size), want_k(size), want_normed_q(size), want_normed_k(size);
    cpu_->Rope(qkv.data(), positions, shape, thetas, want_q.data(), want_k.data());
    cpu_->Norm(want_q.data(), rows * heads, head_dim, q_norm, want_normed_q.data());
    cpu_->Norm(want_k.data(), rows * heads, head_dim, k_norm, want_normed_k.data());
    const auto same = [](size_t) { return 0.0; };
    ExpectClose(q, want_q, same, "q");
    ExpectClose(k, want_k, same, "k");
    ExpectClose(normed_q, want_normed_q, same, "norm of q");
    ExpectClose(normed_k, want_normed_k, same, "norm of k");
    cpu_->RopeAndNorms(qkv.data(), positions, shape, thetas, norms, q.data(), k.data(), q.data(),
                       k.data());
    ExpectClose(q, want_normed_q, same, "norm of q in place");
    ExpectClose(k, want_normed_k, same, "norm of k in place");
  }
}

TEST_P(OpTest, GeluGate) {
  Random random(6);
  for (const int hidden : {1, 3, 8, 31, 33, 512}) {
    for (const int rows : {1, 2, 9}) {
      GuardedFloats up(random.Normals(rows * 2 * hidden, 3));
      // Far out on both sides gelu is g or 0; tanh must neither overflow nor leave [-1, 1].
      up.data()[hidden] = 100;
      up.data()[2 * hidden - 1] = -100;
      GuardedFloats got(rows * hidden), want(rows * hidden);
      cpu_->Gate(GateKind::kGelu, up.data(), rows, hidden, got.data());
      reference_->Gate(GateKind::kGelu, up.data(), rows, hidden, want.data());
      ExpectClose(
          got, want,
          [&](size_t i) {
            const size_t m = i / hidden, column = i % hidden;
            const double u = up[m * 2 * hidden + column];
            const double g = up[m * 2 * hidden + hidden + column];
            // noisy.h has the 8; the product and the reference's rounding add two more.
            return 10 * kU * std::abs(u * g);
          },
          StrCat("GeluGate ", rows, "x", hidden));
    }
  }
}

TEST_P(OpTest, LearnedSketch) {
  Random random(7);
  for (const auto& [d, r] : {std::pair(8, 4), std::pair(16, 8), std::pair(30, 11),
                             std::pair(64, 32), std::pair(64, 64)}) {
    for (const DataType type : kTypes) {
      const testing::NetworkWeights weights(d, r, type, &random);
      const auto cpu_net = weights.Pack(*cpu_, type);
      const auto reference_net = weights.Pack(*reference_, type);
      const int stride = (r + 7) / 8 * 8;
      for (const int rows : {1, 5, 24, 33}) {
        const GuardedFloats x(random.Normals(rows * d));
        GuardedFloats got(rows * stride), want(rows * stride);
        cpu_->LearnedSketch(cpu_net->network, x.data(), rows, got.data());
        reference_->LearnedSketch(reference_net->network, x.data(), rows, want.data());
        std::vector<double> tolerance(rows * stride);  // padding columns are exactly zero
        const double unit = RoundsToBf16(type) ? 0x1p-8 : 0;
        // kernels/cpu/gelu_before_rounding.h, of |x| < 5.
        const double gelu_error = RoundsToBf16(type) ? 3e-5 : 0;
        const auto multiply = [unit](const NoisyRow& row, const Matrix& w) {
          return testing::NoisyMultiply(testing::NoisyRound(row, unit), w);
        };
        for (int m = 0; m < rows; ++m) {
          std::ranges::copy(
              testing::LearnedSketchTolerance(reference_net->network, x.data() + m * d,
                                              want.data() + m * stride, multiply, 0, gelu_error),
              tolerance.begin() + m * stride);
        }
        ExpectClose(
            got, want, [&](size_t i) { return tolerance[i]; },
            StrCat("LearnedSketch ", rows, " rows ", d, " to ", r));
      }
    }
  }
}

TEST_P(OpTest, RandomSketch) {
  Random random(8);
  for (const auto& [d, r] : {std::pair(8, 4), std::pair(30, 11), std::pair(64, 32)}) {
    for (const int levels : {1, 2, 3}) {
      for (const DataType type : kTypes) {
        const testing::SketchWeights weights(d, r, levels, type, &random);
        const auto cpu_sketch = weights.Pack(*cpu_, type);
        const auto reference_sketch = weights.Pack(*reference_, type);
        const int stride = (r + 7) / 8 * 8;
        for (const int rows : {1, 6, 35}) {
          const GuardedFloats x(random.Normals(rows * d));
          GuardedFloats got(rows * stride), want(rows * stride);
          cpu_->ApplyRandomSketch(cpu_sketch->sketch, x.data(), rows, got.data());
          reference_->ApplyRandomSketch(reference_sketch->sketch, x.data(), rows, want.data());
          std::vector<double> tolerance(rows * stride);
          for (int m = 0; m < rows; ++m) {
            std::ranges::copy(
                testing::RandomSketchTolerance(reference_sketch->sketch, x.data() + m * d,
                                               testing::NoisyMultiply),
                tolerance.begin() + m * stride);
          }
          ExpectClose(
              got, want, [&](size_t i) { return tolerance[i]; },
              StrCat("RandomSketch degree 2^", levels, ", ", d, " to ", r));
        }
      }
    }
  }
}

TEST_P(OpTest, LinearFeatures) {
  Random random(9);
  for (const int width : {1, 3, 8, 31, 33, 64}) {
    for (const int rows : {1, 7, 20}) {
      GuardedFloats x(random.Normals(rows * width, 4));
      x.data()[0] = -80;
      x.data()[rows * width - 1] = 0;
      const int heads = rows == 7 ? 7 : 3;
      const GuardedFloats factors(random.Normals(heads));
      GuardedFloats got(rows * width), want(rows * width);
      for (const float* factor : {factors.data(), static_cast<const float*>(nullptr)}) {
        cpu_->LinearFeatures(x.data(), rows, width, factor, heads, got.data());
        reference_->LinearFeatures(x.data(), rows, width, factor, heads, want.data());
        // x + 1 once rounded, or an exponential of at most 2 ulp (an ulp is up to 2u), the product,
        // and the reference's rounding.
        ExpectClose(
            got, want, [&](size_t i) { return 6 * kU * std::abs(want[i]); },
            StrCat("LinearFeatures ", rows, "x", width));
      }
      cpu_->LinearFeatures(x.data(), rows, width, nullptr, heads, x.data());
      for (int i = 0; i < rows * width; ++i) EXPECT_EQ(x.data()[i], got.data()[i]) << i;
    }
  }
}

TEST_P(OpTest, AffineFeatures) {
  Random random(14);
  for (const int width : {2, 6, 8, 30, 64, 126}) {
    const int stride = (width + 8) / 8 * 8;
    for (const int rows : {1, 7, 300}) {
      const int heads = rows == 7 ? 7 : 3;
      const GuardedFloats x(random.Normals(rows * width)), terms(random.Normals(2 * heads));
      for (const float* term : {terms.data(), static_cast<const float*>(nullptr)}) {
        GuardedFloats got(rows * stride), want(rows * stride);
        cpu_->AffineFeatures(x.data(), rows, width, term, heads, got.data());
        reference_->AffineFeatures(x.data(), rows, width, term, heads, want.data());
        // A product is rounded once.
        ExpectClose(
            got, want, [](size_t) { return 0.0; }, StrCat("AffineFeatures ", rows, "x", width));
      }
    }
  }
}

TEST_P(OpTest, PerformerFeatures) {
  Random random(10);
  for (const auto& [d, m] : {std::pair(8, 12), std::pair(30, 33), std::pair(64, 128)}) {
    for (const DataType type : kTypes) {
      const HostWeights w(random.Normals(d * m), m, d, type);  // stored as [m, d]
      const auto packed = Pack(*cpu_, w, true, type);
      const auto expected = Pack(*reference_, w, true, type);
      for (const int rows : {1, 5, 26}) {
        const GuardedFloats x(random.Normals(rows * d));
        GuardedFloats got(rows * m), want(rows * m);
        cpu_->PerformerFeatures(*packed, x.data(), rows, got.data());
        reference_->PerformerFeatures(*expected, x.data(), rows, want.data());
        std::vector<double> tolerance;
        for (int row = 0; row < rows; ++row) {
          // The exponent's absolute error is the result's relative one; scaling x costs two
          // roundings.
          NoisyRow scaled = Exact(x.data() + row * d, d);
          double half_norm = 0;
          for (Noisy& value : scaled) {
            value.value /= std::pow(d, 0.25);
            value.error = 2 * kU * std::abs(value.value);
            half_norm += value.value * value.value / 2;
          }
          for (const Noisy& projected : testing::NoisyMultiply(scaled, *expected)) {
            const double norm_error = std::sqrt(d) * kU * half_norm + 4 * kU * half_norm;
            const double sum_error = kU * (std::abs(projected.value) + half_norm);
            const double relative = kDeviations * projected.error + norm_error + sum_error + 7 * kU;
            tolerance.push_back(relative * want[tolerance.size()]);
          }
        }
        ExpectClose(
            got, want, [&](size_t i) { return tolerance[i]; },
            StrCat("PerformerFeatures ", rows, " rows ", d, " to ", m));
      }
    }
  }
}

TEST_P(OpTest, HeadMaps) {
  Random random(24);
  for (const int width : {2, 10, 64}) {
    for (const int size : {16, 32, 48, 128}) {
      for (const int rows : {1, 7, 60}) {
        const int heads = rows == 7 ? 5 : 3;
        const GuardedFloats x(random.Normals(rows * heads * width)),
            maps(random.Normals(heads * width * size)), biases(random.Normals(heads * size));
        GuardedFloats got(rows * heads * size), want(rows * heads * size), alone(heads * size);
        cpu_->HeadMaps(x.data(), rows, heads, width, maps.data(), biases.data(), size, got.data());
        reference_->HeadMaps(x.data(), rows, heads, width, maps.data(), biases.data(), size,
                             want.data());
        const auto tolerance = [&](size_t i) {
          return testing::HeadMapsError(x.data(), heads, width, maps.data(), biases.data(), size,
                                        i);
        };
        ExpectClose(got, want, tolerance,
                    StrCat("HeadMaps ", rows, "x", heads, "x", width, " to ", size));
        const int row = rows - 1;
        cpu_->HeadMaps(x.data() + row * heads * width, 1, heads, width, maps.data(), biases.data(),
                       size, alone.data());
        for (int i = 0; i < heads * size; ++i) {
          ASSERT_EQ(alone.data()[i], got.data()[row * heads * size + i]) << "one row " << i;
        }
      }
    }
  }
}

TEST_P(OpTest, LogSigmoid) {
  Random random(12);
  for (const int size : {1, 3, 8, 15, 16, 17, 31, 33, 4097, 20011}) {
    GuardedFloats x(random.Normals(size, 6));
    x.data()[0] = -1e30f;
    x.data()[size - 1] = 85;  // the result is a normal number still
    GuardedFloats got(size), want(size);
    cpu_->LogSigmoid(x.data(), size, got.data());
    reference_->LogSigmoid(x.data(), size, want.data());
    // Both parts have one sign, so relative errors do not grow: an exponential of 2 ulp (4 u); the
    // sum and the quotient of s, which keep the relative error of y; 2 s exact; the polynomial's
    // roundings, a ninth of them at most, its last step; the difference; the reference's rounding.
    ExpectClose(
        got, want, [&](size_t i) { return 9 * kU * std::abs(want[i]); },
        StrCat("LogSigmoid ", size));
    std::vector<float> in_place(x.data(), x.data() + x.size());
    cpu_->LogSigmoid(in_place.data(), size, in_place.data());
    EXPECT_EQ(std::memcmp(in_place.data(), got.data(), got.size() * sizeof(float)), 0) << size;
    for (int i = 0; i < size; i += 1 + size / 50) {
      float alone = 0;
      cpu_->LogSigmoid(x.data() + i, 1, &alone);
      EXPECT_EQ(std::memcmp(&alone, got.data() + i, sizeof(float)), 0) << size << " at " << i;
    }
  }
}

TEST_P(OpTest, LogSumExp) {
  Random random(11);
  for (const int width : {1, 3, 8, 31, 33, 61, 4096}) {
    for (const int rows : {1, 2, 5}) {
      for (const double magnitude : {1.0, 30.0}) {
        GuardedFloats x(random.Normals(rows * width, magnitude, 40));
        if (width > 2) x.data()[1] = -std::numeric_limits<float>::infinity();  // a masked entry
        GuardedFloats got(rows), want(rows);
        cpu_->LogSumExp(x.data(), rows, width, got.data());
        reference_->LogSumExp(x.data(), rows, width, want.data());
        // A relative error of the sum is an absolute one of its logarithm: `width` roundings, an
        // exponential of 2 ulp whose argument carries u |x - max| (times exp(x - max): below u /
        // e); then log and the final addition.
        ExpectClose(
            got, want,
            [&](size_t i) {
              return kU * (kDeviations * std::sqrt(width) + 5 + 4 * std::log(width + 1.0) +
                           2 * std::abs(want[i]));
            },
            StrCat("LogSumExp ", rows, "x", width));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, OpTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
