// Every op but attention against the reference, with float32 and 16-bit weights; quantized_test.cc has
// the products of 8-bit and 4-bit weights. float32
// tolerances as in tests/kernels/op_test.cc; a product with 16-bit weights rounds its left operand
// to their format (unit u: a variance of u^2 / 3 of each term's square) and sums exactly in
// float32.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/angles.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/head_maps_error.h"
#include "tests/kernels/noisy_sketch.h"
#include "tests/kernels/weights.h"
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
using testing::Square;

constexpr DataType kTypes[] = {DataType::kF32, DataType::kF16, DataType::kBf16};

double UnitOf(DataType type) {
  return type == DataType::kF32 ? 0 : type == DataType::kBf16 ? testing::kBf16U : testing::kF16U;
}

class CudaOpsTest : public testing::CudaTest {
 protected:
  template <typename Tolerance>
  static void ExpectClose(const GuardedFloats& got, const GuardedFloats& want,
                          const Tolerance& tolerance, const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance(i)) << what << " element " << i;
    }
  }
};

// y = x w with the errors of x, of rounding x to the format of w, and of the float32 sum.
NoisyRow Multiply(const NoisyRow& x, const Matrix& w) {
  return testing::NoisyMultiply(testing::NoisyRound(x, UnitOf(w.type())), w);
}

TEST_F(CudaOpsTest, MatMul) {
  Random random(2);
  const std::pair<int, int> shapes[] = {{1, 1}, {200, 12}, {31, 33}, {64, 96}, {100, 70}};
  for (const auto& [in, out] : shapes) {
    const std::vector<float> values = random.Normals(in * out);
    const GuardedFloats bias(random.Normals(out));
    for (const DataType type : kTypes) {
      const HostWeights w(values, in, out, type);
      const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
      const auto expected = reference_->PackMatrix(w.matrix(), false, type);
      EXPECT_EQ(packed->bytes(), expected->bytes());
      for (const int rows : {1, 6, 17, 70, 75, 84}) {
        const GuardedFloats x(random.Normals(rows * in));
        const std::vector<float> old = random.Normals(rows * out);
        const float* bias_or_null = rows % 2 == 0 ? bias.data() : nullptr;
        const bool accumulate = rows % 5 == 0;
        GuardedFloats got(old), want(old);
        cuda_->MatMul(x.data(), rows, *packed, bias_or_null, accumulate, got.data());
        reference_->MatMul(x.data(), rows, *expected, bias_or_null, accumulate, want.data());
        std::vector<double> tolerance;
        for (int m = 0; m < rows; ++m) {
          const NoisyRow y = Multiply(Exact(x.data() + m * in, in), *expected);
          for (int o = 0; o < out; ++o) {
            tolerance.push_back(
                kDeviations * y[o].error +
                3 * kU *
                    (std::abs(want[m * out + o]) + std::abs(bias[o]) + std::abs(old[m * out + o])));
          }
        }
        const std::string what =
            StrCat("MatMul ", rows, "x", in, "x", out, " ", DataTypeName(type));
        ExpectClose(
            got, want, [&](size_t i) { return tolerance[i]; }, what);
        // Each row alone has the bits that it has among others.
        for (int m = 0; m < rows; m += 16) {
          GuardedFloats alone(
              std::vector<float>(old.begin() + m * out, old.begin() + (m + 1) * out));
          cuda_->MatMul(x.data() + m * in, 1, *packed, bias_or_null, accumulate, alone.data());
          for (int o = 0; o < out; ++o)
            ASSERT_EQ(alone[o], got[m * out + o]) << what << " row " << m;
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, Embed) {
  Random random(3);
  const int vocab = 77, width = 20;
  for (const DataType type :
       {DataType::kF32, DataType::kF16, DataType::kBf16, DataType::kQ8, DataType::kQ4}) {
    const HostWeights w(random.Normals(vocab * width), vocab, width, DataType::kF32);
    const auto packed = cuda_->PackMatrix(w.matrix(), true, type);
    const auto expected = reference_->PackMatrix(w.matrix(), true, type);
    const std::vector<int64_t> positions = {0, 1, 511, 5000000, 123456789012};
    const std::vector<int32_t> tokens = {76, 0, 5, 5, 30};
    GuardedFloats got(tokens.size() * width), want(tokens.size() * width);
    cuda_->Embed(*packed, tokens, positions, got.data());
    reference_->Embed(*expected, tokens, positions, want.data());
    ExpectClose(
        got, want, [&](size_t i) { return 4 * kU * (1 + std::abs(want[i])); },
        StrCat("Embed ", DataTypeName(type)));
    cuda_->Embed(*packed, tokens, {}, got.data());
    reference_->Embed(*expected, tokens, {}, want.data());
    ExpectClose(
        got, want, [&](size_t i) { return 4 * kU * std::abs(want[i]); },
        StrCat("Embed without positions ", DataTypeName(type)));
  }
}

TEST_F(CudaOpsTest, LayerNorm) {
  Random random(4);
  for (const int width : {1, 33, 64, 66, 128, 192, 1028}) {
    const std::vector<float> scale = random.Normals(width, 0.3, 1);
    const std::vector<float> bias = random.Normals(width);
    const NormWeights norm{scale.data(), bias.data()};
    const int rows = 7;
    const GuardedFloats x(random.Normals(rows * width, 1, 5));
    GuardedFloats got(rows * width), want(rows * width);
    cuda_->Norm(x.data(), rows, width, norm, got.data());
    reference_->Norm(x.data(), rows, width, norm, want.data());
    std::vector<double> tolerance;
    for (int m = 0; m < rows; ++m) {
      for (const Noisy& y : testing::NoisyNorm(Exact(x.data() + m * width, width), norm)) {
        tolerance.push_back(kDeviations * y.error + kU * std::abs(y.value));
      }
    }
    ExpectClose(
        got, want, [&](size_t i) { return tolerance[i]; }, StrCat("LayerNorm ", width));
    std::vector<float> in_place(x.data(), x.data() + x.size());
    cuda_->Norm(in_place.data(), rows, width, norm, in_place.data());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(in_place[i], got[i]);
  }
}

// Shapes of every kernel for few rows: tiles of 8, 16 and 32 columns, more k than the stages hold,
// left operands as a whole and by stages. Each row has the bits of the kernel for many rows.
TEST_F(CudaOpsTest, FewRowsHaveTheBitsOfMany) {
  Random random(21);
  const std::pair<int, int> shapes[] = {{40, 24}, {100, 70}, {2100, 40}, {70, 200}, {100, 8200}};
  for (const auto& [in, out] : shapes) {
    const std::vector<float> values = random.Normals(in * out);
    const DataType type = in == 100 ? DataType::kF16 : DataType::kBf16;
    const HostWeights w(values, in, out, type);
    const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
    const int most = 65;
    const GuardedFloats x(random.Normals(most * in)), bias(random.Normals(out));
    const std::vector<float> old = random.Normals(most * out);
    for (const bool accumulate : {false, true}) {
      const float* added = accumulate ? nullptr : bias.data();
      std::vector<float> want(old);
      cuda_->MatMul(x.data(), most, *packed, added, accumulate, want.data());
      for (const int rows : {1, 3, 16, 17, 64}) {
        if (out > 8000 && (accumulate || rows == 3 || rows == 16)) continue;
        std::vector<float> got(old.begin(), old.begin() + rows * out);
        cuda_->MatMul(x.data(), rows, *packed, added, accumulate, got.data());
        for (int i = 0; i < rows * out; ++i) {
          ASSERT_EQ(got[i], want[i]) << rows << "x" << in << "x" << out << " element " << i;
        }
      }
    }
  }
}

// Widths of one piece of a norm and of two; gates of pairs of columns, and of columns. What products with
// quantised weights prepare themselves, of few rows, and what others prepare.
TEST_F(CudaOpsTest, FusedOpsHaveTheBitsOfTheirParts) {
  Random random(22);
  struct Shape {
    int width, hidden;
    GateKind gate;
    NormKind kind;
    bool biases;
  };
  const Shape shapes[] = {{48, 64, GateKind::kGelu, NormKind::kLayer, false},
                          {130, 36, GateKind::kSilu, NormKind::kRms, true},
                          {96, 40, GateKind::kUngatedGelu, NormKind::kLayer, true},
                          {40, 288, GateKind::kSilu, NormKind::kRms, true},
                          {1100, 32, GateKind::kUngatedGelu, NormKind::kLayer, true}};
  for (const DataType type :
       {DataType::kF32, DataType::kF16, DataType::kBf16, DataType::kQ8, DataType::kQ4}) {
    for (const auto& [width, hidden, gate, kind, biases] : shapes) {
      const auto columns = static_cast<int>(UpColumns(gate, hidden));
      const HostWeights up(random.Normals(width * columns, 0.2), width, columns, DataType::kF32);
      const HostWeights down(random.Normals(hidden * width), hidden, width, DataType::kF32);
      const auto up_packed = cuda_->PackMatrix(up.matrix(), false, type);
      const auto down_packed = cuda_->PackMatrix(down.matrix(), false, type);
      const std::vector<float> scale = random.Normals(width, 0.3, 1), bias = random.Normals(width);
      const std::vector<float> up_bias = random.Normals(columns), down_bias = random.Normals(width);
      const NormWeights norm{scale.data(), kind == NormKind::kLayer ? bias.data() : nullptr, kind};
      const MlpWeights mlp{norm,
                           up_packed.get(),
                           down_packed.get(),
                           gate,
                           biases ? up_bias.data() : nullptr,
                           biases ? down_bias.data() : nullptr};
      for (const int rows : {1, 3, 9, 20, 70}) {
        if (width > 1024 && rows > 9) continue;
        const std::string what = StrCat(rows, "x", width, "x", hidden, " ", DataTypeName(type));
        const GuardedFloats x(random.Normals(rows * width, 1, 0.5));
        std::vector<float> normed(rows * width), scratch(rows * (width + 3 * hidden));
        GuardedFloats got(rows * columns), want(rows * columns);
        cuda_->NormMatMul(x.data(), rows, norm, *up_packed, mlp.up_bias, normed.data(), got.data());
        cuda_->Norm(x.data(), rows, width, norm, normed.data());
        cuda_->MatMul(normed.data(), rows, *up_packed, mlp.up_bias, false, want.data());
        for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << " " << i;

        std::vector<float> out(x.data(), x.data() + x.size()), sum = out;
        cuda_->Mlp(mlp, rows, out.data(), scratch.data());
        GuardedFloats gated(rows * hidden);
        cuda_->Gate(gate, want.data(), rows, hidden, gated.data());
        cuda_->MatMul(gated.data(), rows, *down_packed, mlp.down_bias, true, sum.data());
        for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], sum[i]) << what << " " << i;
      }
    }
  }
}

TEST_F(CudaOpsTest, DecayGatesHaveTheBitsOfTheirParts) {
  Random random(25);
  for (const auto& [width, heads] : {std::pair(130, 5), std::pair(96, 40), std::pair(1100, 8)}) {
    const HostWeights qkv(random.Normals(width * 24), width, 24, DataType::kF32);
    const HostWeights gate(random.Normals(width * heads), width, heads, DataType::kF32);
    const auto qkv_packed = cuda_->PackMatrix(qkv.matrix(), false, DataType::kBf16);
    const auto gate_packed = cuda_->PackMatrix(gate.matrix(), false, DataType::kF32);
    const std::vector<float> scale = random.Normals(width, 0.3, 1), bias = random.Normals(heads);
    const NormWeights norm{scale.data(), nullptr, NormKind::kRms};
    for (const int rows : {1, 6}) {
      const GuardedFloats x(random.Normals(rows * width));
      std::vector<float> normed(rows * width);
      GuardedFloats out(rows * 24), want_out(rows * 24), got(rows * heads), want(rows * heads);
      const float* added = rows == 1 ? nullptr : bias.data();
      cuda_->NormMatMulDecay(x.data(), rows, norm, *qkv_packed, nullptr, *gate_packed, added,
                             normed.data(), out.data(), got.data());
      cuda_->NormMatMul(x.data(), rows, norm, *qkv_packed, nullptr, normed.data(), want_out.data());
      cuda_->Norm(x.data(), rows, width, norm, normed.data());
      cuda_->MatMul(normed.data(), rows, *gate_packed, added, false, want.data());
      cuda_->LogSigmoid(want.data(), rows * heads, want.data());
      for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], want_out[i]) << width << " " << i;
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << width << " " << i;
    }
  }
}

TEST_F(CudaOpsTest, RopeAndNorms) {
  Random random(23);
  for (const int head_dim : {6, 8, 32, 64, 104, 128}) {
    const std::vector<int64_t> positions = {0, 1, 77, 1000003, 987654321};
    const int heads = 3, width = heads * head_dim, rows = 5;
    const std::vector<float> scale[2] = {random.Normals(head_dim), random.Normals(head_dim)};
    const std::vector<float> bias[2] = {random.Normals(head_dim), random.Normals(head_dim)};
    const NormWeights norms[2] = {{scale[0].data(), bias[0].data()},
                                  {scale[1].data(), bias[1].data()}};
    const GuardedFloats qkv(random.Normals(rows * 3 * width));
    std::vector<std::vector<float>> got(4, std::vector<float>(rows * width)), want = got;
    const HeadShape shape{heads, heads, head_dim};
    const std::vector<float> thetas = RopeThetas(head_dim);
    cuda_->RopeAndNorms(qkv.data(), positions, shape, thetas, {norms[0], norms[1]}, got[0].data(),
                        got[1].data(), got[2].data(), got[3].data());
    cuda_->Rope(qkv.data(), positions, shape, thetas, want[0].data(), want[1].data());
    for (int part = 0; part < 2; ++part) {
      cuda_->Norm(want[part].data(), rows * heads, head_dim, norms[part], want[2 + part].data());
    }
    for (int i = 0; i < 4; ++i) {
      for (size_t j = 0; j < got[i].size(); ++j) {
        ASSERT_EQ(got[i][j], want[i][j]) << head_dim << " " << i << " " << j;
      }
    }
    // In place.
    cuda_->RopeAndNorms(qkv.data(), positions, shape, thetas, {norms[0], norms[1]}, got[0].data(),
                        got[1].data(), got[0].data(), got[1].data());
    for (int i = 0; i < 2; ++i) {
      for (size_t j = 0; j < got[i].size(); ++j) ASSERT_EQ(got[i][j], want[2 + i][j]) << head_dim;
    }
  }
}

// Whether the library's products have the bits of ours, for every matrix of the 110M model: what
// matmul.cu finds out at load for each shape. A difference is no fault, since then the library
// computes the products of any number of rows; that must be so in the default mode.
TEST_F(CudaOpsTest, TheLibrarysBitsAndOurs) {
  if (testing::Emulated()) GTEST_SKIP() << "no library in the emulation";
  const auto open = [](const char* dense) {
    std::string reason;
    dense == nullptr ? unsetenv("POLYSKETCH_CUDA_DENSE")
                     : setenv("POLYSKETCH_CUDA_DENSE", dense, 1);
    auto backend = testing::NewBackendUnderTest(&reason);
    unsetenv("POLYSKETCH_CUDA_DENSE");
    return std::make_unique<testing::StagedBackend>(std::move(backend));
  };
  const auto library = open("library"), ours = open("portable"), chosen = open(nullptr);
  Random random(24);
  const std::pair<int, int> shapes[] = {
      {768, 2304}, {768, 768}, {768, 4096}, {2048, 768}, {768, 32000}};
  for (const auto& [in, out] : shapes) {
    const HostWeights w(random.Normals(in * out, 0.05), in, out, DataType::kBf16);
    const auto pack = [&](Backend& backend) {
      setenv("POLYSKETCH_CUDA_DENSE", &backend == library.get() ? "library" : "", 1);
      auto matrix = backend.PackMatrix(w.matrix(), false, DataType::kBf16);
      unsetenv("POLYSKETCH_CUDA_DENSE");
      return matrix;
    };
    const auto library_w = pack(*library), our_w = pack(*ours), chosen_w = pack(*chosen);
    std::vector<float> first;  // of the default mode
    for (const int rows : {8192, 512, 65, 64, 1}) {
      if (rows == 8192 && out == 32000) continue;
      static std::vector<float> x;
      if (x.empty()) x = random.Normals(8192 * 2048);
      std::vector<float> theirs(static_cast<size_t>(rows) * out), mine = theirs, used = theirs;
      library->MatMul(x.data(), rows, *library_w, nullptr, false, theirs.data());
      ours->MatMul(x.data(), rows, *our_w, nullptr, false, mine.data());
      chosen->MatMul(x.data(), rows, *chosen_w, nullptr, false, used.data());
      size_t different = 0, at = 0;
      for (size_t i = theirs.size(); i-- > 0;) {
        if (theirs[i] != mine[i]) ++different, at = i;
      }
      std::printf("bits of the library and ours, %d x %d x %d: ", rows, in, out);
      if (different == 0) {
        std::printf("equal\n");
      } else {
        std::printf("%zu differ, first element %zu: %a and %a\n", different, at, theirs[at],
                    mine[at]);
      }
      if (first.empty()) first = used;
      for (size_t i = 0; i < used.size(); ++i) {
        ASSERT_EQ(used[i], first[i]) << rows << "x" << in << "x" << out << " element " << i;
      }
    }
  }
}

TEST_F(CudaOpsTest, Rope) {
  Random random(5);
  for (const int head_dim : {2, 6, 32}) {
    const std::vector<int64_t> positions = {0, 1, 77, 1000003, 987654321};
    const int heads = 3, width = heads * head_dim, rows = 5;
    const GuardedFloats qkv(random.Normals(rows * 3 * width));
    GuardedFloats q(rows * width), k(rows * width), want_q(rows * width), want_k(rows * width);
    const HeadShape shape{heads, heads, head_dim};
    const std::vector<float> thetas = RopeThetas(head_dim);
    cuda_->Rope(qkv.data(), positions, shape, thetas, q.data(), k.data());
    reference_->Rope(qkv.data(), positions, shape, thetas, want_q.data(), want_k.data());
    double largest = 0;
    for (size_t i = 0; i < qkv.size(); ++i) largest = std::max<double>(largest, std::abs(qkv[i]));
    const auto tolerance = [&](size_t) { return 6 * kU * largest; };
    ExpectClose(q, want_q, tolerance, "Rope q");
    ExpectClose(k, want_k, tolerance, "Rope k");
  }
}

TEST_F(CudaOpsTest, GeluGateAndLinearFeatures) {
  Random random(6);
  const int hidden = 33, rows = 3;
  GuardedFloats up(random.Normals(rows * 2 * hidden, 3));
  up.data()[hidden] = 100;
  up.data()[2 * hidden - 1] = -100;
  GuardedFloats got(rows * hidden), want(rows * hidden);
  cuda_->Gate(GateKind::kGelu, up.data(), rows, hidden, got.data());
  reference_->Gate(GateKind::kGelu, up.data(), rows, hidden, want.data());
  ExpectClose(
      got, want,
      [&](size_t i) {
        const size_t m = i / hidden, column = i % hidden;
        return 10 * kU *
               std::abs(up[m * 2 * hidden + column] * up[m * 2 * hidden + hidden + column]);
      },
      "GeluGate");
  const GuardedFloats factors(random.Normals(2));
  for (const float* factor : {factors.data(), static_cast<const float*>(nullptr)}) {
    cuda_->LinearFeatures(up.data(), rows, hidden, factor, 2, got.data());
    reference_->LinearFeatures(up.data(), rows, hidden, factor, 2, want.data());
    ExpectClose(
        got, want, [&](size_t i) { return 6 * kU * std::abs(want[i]); }, "LinearFeatures");
  }
}

TEST_F(CudaOpsTest, AffineFeatures) {
  Random random(14);
  const int width = 30, rows = 35, heads = 5, stride = 32;
  const GuardedFloats x(random.Normals(rows * width)), terms(random.Normals(2 * heads));
  for (const float* term : {terms.data(), static_cast<const float*>(nullptr)}) {
    GuardedFloats got(rows * stride), want(rows * stride);
    cuda_->AffineFeatures(x.data(), rows, width, term, heads, got.data());
    reference_->AffineFeatures(x.data(), rows, width, term, heads, want.data());
    // A product is rounded once.
    ExpectClose(
        got, want, [](size_t) { return 0.0; }, "AffineFeatures");
  }
}

TEST_F(CudaOpsTest, HeadMaps) {
  Random random(15);
  const int width = 30, rows = 35, heads = 5, size = 48;
  const GuardedFloats x(random.Normals(rows * heads * width)),
      maps(random.Normals(heads * width * size)), biases(random.Normals(heads * size));
  GuardedFloats got(rows * heads * size), want(rows * heads * size);
  cuda_->HeadMaps(x.data(), rows, heads, width, maps.data(), biases.data(), size, got.data());
  reference_->HeadMaps(x.data(), rows, heads, width, maps.data(), biases.data(), size, want.data());
  const auto tolerance = [&](size_t i) {
    return testing::HeadMapsError(x.data(), heads, width, maps.data(), biases.data(), size, i);
  };
  ExpectClose(got, want, tolerance, "HeadMaps");
}

TEST_F(CudaOpsTest, LogSigmoid) {
  Random random(12);
  for (const int size : {1, 127, 300}) {
    GuardedFloats x(random.Normals(size, 6));
    x.data()[0] = -1e30f;
    x.data()[size - 1] = 85;  // the result is a normal number still
    GuardedFloats got(size), want(size);
    cuda_->LogSigmoid(x.data(), size, got.data());
    reference_->LogSigmoid(x.data(), size, want.data());
    // Both parts have one sign, so relative errors do not grow: an exponential of 2 ulp (4 u), a
    // logarithm of 1 ulp, the difference, the reference's rounding.
    ExpectClose(
        got, want, [&](size_t i) { return 9 * kU * std::abs(want[i]); },
        StrCat("LogSigmoid ", size));
  }
}

TEST_F(CudaOpsTest, PerformerFeatures) {
  Random random(10);
  const int d = 24, m = 19, rows = 5;
  const HostWeights w(random.Normals(d * m), d, m, DataType::kF32);
  const auto packed = cuda_->PackMatrix(w.matrix(), false, DataType::kF32);
  const auto expected = reference_->PackMatrix(w.matrix(), false, DataType::kF32);
  const GuardedFloats x(random.Normals(rows * d));
  GuardedFloats got(rows * m), want(rows * m);
  cuda_->PerformerFeatures(*packed, x.data(), rows, got.data());
  reference_->PerformerFeatures(*expected, x.data(), rows, want.data());
  // The exponent is a sum of 2 d terms of order |x| |omega| / d^(1/4): its error is relative.
  ExpectClose(
      got, want, [&](size_t i) { return kDeviations * kU * 40 * std::abs(want[i]); }, "performer");
}

TEST_F(CudaOpsTest, LearnedSketch) {
  Random random(7);
  for (const auto& [d, r] :
       {std::pair(8, 4), std::pair(30, 11), std::pair(32, 16), std::pair(64, 32)}) {
    for (const DataType type : kTypes) {
      const testing::NetworkWeights weights(d, r, type, &random);
      const auto cuda_net = weights.Pack(*cuda_, type);
      const auto reference_net = weights.Pack(*reference_, type);
      const int stride = (r + 7) / 8 * 8;
      for (const int rows : {1, 21}) {
        const GuardedFloats x(random.Normals(rows * d));
        GuardedFloats got(rows * stride), want(rows * stride);
        cuda_->LearnedSketch(cuda_net->network, x.data(), rows, got.data());
        reference_->LearnedSketch(reference_net->network, x.data(), rows, want.data());
        std::vector<double> tolerance(rows * stride);  // padding columns are exactly zero
        // The fused kernel's tanh is good to 2^-11.
        const double tanh_error = type == DataType::kF32 ? 0 : 0x1p-11;
        for (int m = 0; m < rows; ++m) {
          std::ranges::copy(
              testing::LearnedSketchTolerance(reference_net->network, x.data() + m * d,
                                              want.data() + m * stride, Multiply, tanh_error),
              tolerance.begin() + m * stride);
        }
        ExpectClose(
            got, want, [&](size_t i) { return tolerance[i]; },
            StrCat("LearnedSketch ", rows, " rows ", d, " to ", r, " ", DataTypeName(type)));
        // The last row alone has the bits that it has among others.
        GuardedFloats alone(stride);
        cuda_->LearnedSketch(cuda_net->network, x.data() + (rows - 1) * d, 1, alone.data());
        for (int i = 0; i < stride; ++i) ASSERT_EQ(alone[i], got[(rows - 1) * stride + i]) << i;
      }
    }
  }
}

// Few rows, many rows, and many on a device that has no room for all weights take different
// kernels: a row has the same bits in all of them.
TEST_F(CudaOpsTest, LearnedSketchKernelsAgree) {
  struct Case {
    int d, r, rows;
    DataType type;
  };
  // On a GPU the first rows take the few-row kernel and all together the other one, whatever the
  // number of multiprocessors; the emulation has 4.
  const int many = Scale(421, 16421);
  const Case cases[] = {{64, 32, many, DataType::kBf16},
                        {32, 16, many, DataType::kF16},
                        {128, 32, Scale(37, 421), DataType::kF16},
                        {32, 64, Scale(37, 421), DataType::kBf16}};
  Random random(12);
  for (const Case& one : cases) {
    const int d = one.d, r = one.r, rows = one.rows;
    const DataType type = one.type;
    const testing::NetworkWeights weights(d, r, type, &random);
    const GuardedFloats x(random.Normals(rows * d));
    const auto run = [&](Backend& backend, int from, int count) {
      const auto net = weights.Pack(backend, type);
      std::vector<float> out(count * r);
      backend.LearnedSketch(net->network, x.data() + from * d, count, out.data());
      return out;
    };
    const std::vector<float> all = run(*cuda_, 0, rows);
    const auto expect_same = [&](const std::vector<float>& got, int from, const char* what) {
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], all[from * r + i])
            << what << ", " << d << " to " << r << ", element " << i;
      }
    };
    expect_same(run(*cuda_, 3, std::min(33, rows - 3)), 3, "few rows");
    testing::SetSharedLimit(99 << 10);
    std::string reason;
    testing::StagedBackend smaller(testing::NewBackendUnderTest(&reason));
    expect_same(run(smaller, 0, rows), 0, "a small device");
    testing::SetSharedLimit(testing::kH100Shared);
  }
}

TEST_F(CudaOpsTest, RandomSketch) {
  struct Shape {
    int levels, d, r, rows;
  };
  // A part of a tile; several tiles of rows and of columns; a level of more pairs than a launch
  // takes.
  const Shape shapes[] = {{1, 30, 11, 6},  {2, 30, 11, 6},  {3, 30, 11, 6},
                          {1, 64, 32, 70}, {2, 16, 40, 70}, {6, 4, 3, 2}};
  Random random(8);
  for (const auto& [levels, d, r, rows] : shapes) {
    const int stride = (r + 7) / 8 * 8;
    const testing::SketchWeights weights(d, r, levels, DataType::kF32, &random);
    const auto cuda_sketch = weights.Pack(*cuda_, DataType::kF32);
    const auto reference_sketch = weights.Pack(*reference_, DataType::kF32);
    const GuardedFloats x(random.Normals(rows * d));
    GuardedFloats got(rows * stride), want(rows * stride);
    cuda_->ApplyRandomSketch(cuda_sketch->sketch, x.data(), rows, got.data());
    reference_->ApplyRandomSketch(reference_sketch->sketch, x.data(), rows, want.data());
    std::vector<double> tolerance(rows * stride);  // padding columns are exactly zero
    for (int m = 0; m < rows; ++m) {
      std::ranges::copy(
          testing::RandomSketchTolerance(reference_sketch->sketch, x.data() + m * d, Multiply),
          tolerance.begin() + m * stride);
    }
    ExpectClose(
        got, want, [&](size_t i) { return tolerance[i]; },
        StrCat("RandomSketch degree 2^", levels, ", ", rows, " rows ", d, " to ", r));
    // The last row alone has the bits that it has among others.
    GuardedFloats alone(stride);
    cuda_->ApplyRandomSketch(cuda_sketch->sketch, x.data() + (rows - 1) * d, 1, alone.data());
    for (int i = 0; i < stride; ++i) ASSERT_EQ(alone[i], got[(rows - 1) * stride + i]) << i;
  }
}

TEST_F(CudaOpsTest, LogSumExp) {
  Random random(11);
  const int rows = 3, width = 700;
  const GuardedFloats x(random.Normals(rows * width, 5));
  GuardedFloats got(rows), want(rows);
  cuda_->LogSumExp(x.data(), rows, width, got.data());
  reference_->LogSumExp(x.data(), rows, width, want.data());
  // A sum of `width` positive terms has a relative error of about sqrt(width) u; its logarithm that
  // as an absolute one.
  ExpectClose(
      got, want,
      [&](size_t i) { return kU * (kDeviations * std::sqrt(width + 4.0) + 2 * std::abs(want[i])); },
      "LogSumExp");
}

}  // namespace
}  // namespace polysketch
