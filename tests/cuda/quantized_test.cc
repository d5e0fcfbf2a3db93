// Products with 8-bit and 4-bit weights, to the bit and against the reference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/half.h"
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

constexpr DataType kTypes[] = {DataType::kQ8, DataType::kQ4};

// A matrix as integers and a scale for each column. Those of 4 bits have the scale of their group as
// a factor.
struct Integers {
  std::vector<int64_t> values;  // [in][out]
  std::vector<float> scales;    // [out]
};

Integers EightBits(const std::vector<float>& values, int in, int out) {
  Integers result{std::vector<int64_t>(values.size()), {}};
  for (int n = 0; n < out; ++n) {
    const QuantScale scale = QuantScale::Of(LargestMagnitude(&values[n], in, out));
    for (int k = 0; k < in; ++k) result.values[k * out + n] = Quantize(values[k * out + n], scale);
    result.scales.push_back(scale.scale);
  }
  return result;
}

Integers FourBits(const std::vector<float>& values, int in, int out) {
  Integers result{std::vector<int64_t>(values.size()), {}};
  for (int n = 0; n < out; ++n) {
    std::vector<float> scales;
    for (int first = 0; first < in; first += kQ4Group) {
      const int count = std::min<int>(kQ4Group, in - first);
      float group[kQ4Group];
      int8_t q[kQ4Group];
      for (int k = 0; k < count; ++k) group[k] = values[(first + k) * out + n];
      scales.push_back(Bf16ToFloat(QuantizeGroupQ4(group, count, q)));
      for (int k = 0; k < count; ++k) result.values[(first + k) * out + n] = q[k];
    }
    const QuantScale unit = QuantScale::Of(LargestMagnitude(scales.data(), Q4Groups(in), 1));
    for (int k = 0; k < in; ++k) {
      result.values[k * out + n] *= Quantize(scales[k / kQ4Group], unit);
    }
    result.scales.push_back(unit.scale);
  }
  return result;
}

class CudaQuantizedTest : public testing::CudaTest {
 protected:
  // Products of some numbers of rows: one, few, whole tiles of the tensor cores and parts of them.
  // The result is known to the bit, whatever the other rows: an exact sum of integers, scaled by
  // the scales of its row and of its column, then the bias and the old value added.
  void ExpectExactProducts(int in, int out, DataType type) {
    const std::vector<float> values = random_.Normals(in * out), bias = random_.Normals(out);
    const HostWeights w(values, in, out, DataType::kF32);
    const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
    const Integers integers =
        type == DataType::kQ8 ? EightBits(values, in, out) : FourBits(values, in, out);
    for (const int rows : {1, 3, 16, 33, 64, 100, 129, Scale(150, 3000)}) {
      const std::vector<float> x = random_.Normals(rows * in), old = random_.Normals(rows * out);
      const bool has_bias = rows % 2 == 0, accumulate = rows % 3 == 0;
      GuardedFloats got(old);
      cuda_->MatMul(x.data(), rows, *packed, has_bias ? bias.data() : nullptr, accumulate,
                    got.data());
      for (int m = 0; m < rows; ++m) {
        const QuantScale scale = QuantScale::Of(LargestMagnitude(x.data() + m * in, in, 1));
        std::vector<int64_t> sums(out);
        for (int k = 0; k < in; ++k) {
          const int64_t q = Quantize(x[m * in + k], scale);
          for (int n = 0; n < out; ++n) sums[n] += q * integers.values[k * out + n];
        }
        for (int n = 0; n < out; ++n) {
          const int i = m * out + n;
          float want = static_cast<float>(sums[n]) * (scale.scale * integers.scales[n]);
          if (has_bias) want += bias[n];
          if (accumulate) want += old[i];
          ASSERT_EQ(got[i], want) << rows << " x " << in << " x " << out << " "
                                  << DataTypeName(type) << " element " << i;
        }
      }
    }
  }

  Random random_{3};
};

// Parts of words, of groups, of tiles and of stages; columns that can be read four at a time, and
// that cannot; with the most rows more tiles of 128 x 128 than multiprocessors.
TEST_F(CudaQuantizedTest, SumsAreExact) {
  for (const DataType type : kTypes) {
    for (const auto& [in, out] : {std::pair(45, 37), std::pair(64, 16), std::pair(1100, 21),
                                  std::pair(100, 260), std::pair(200, Scale(132, 1101))}) {
      ExpectExactProducts(in, out, type);
    }
  }
}

// The reference multiplies the same integers. q8: three roundings of the product, two of additions,
// its own. q4: it takes the scales of groups as they are; here they are off by half a unit of their
// column, which is at most 1 / (7 * 127) of its largest weight, and multiply integers of at most 8.
TEST_F(CudaQuantizedTest, ProductsAreTheReferences) {
  const int in = 320, out = 70;
  const std::vector<float> values = random_.Normals(in * out), bias = random_.Normals(out);
  const HostWeights w(values, in, out, DataType::kF32);
  for (const DataType type : kTypes) {
    const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
    const auto expected = reference_->PackMatrix(w.matrix(), false, type);
    EXPECT_EQ(packed->type(), type);
    EXPECT_EQ(packed->bytes(), expected->bytes());
    for (const int rows : {1, 10, 70}) {
      const GuardedFloats x(random_.Normals(rows * in));
      const std::vector<float> old = random_.Normals(rows * out);
      GuardedFloats got(old), want(old);
      cuda_->MatMul(x.data(), rows, *packed, bias.data(), true, got.data());
      reference_->MatMul(x.data(), rows, *expected, bias.data(), true, want.data());
      for (size_t i = 0; i < want.size(); ++i) {
        const size_t row = i / out, column = i % out;
        double off = 0;
        if (type == DataType::kQ4) {
          const double step = LargestMagnitude(x.data() + row * in, in, 1) / 127;
          for (int k = 0; k < in; ++k) off += std::abs(x[row * in + k]) + step / 2;
          off *= 8 * LargestMagnitude(&values[column], in, out) / (7.0 * 127 * 2);
        }
        const double largest = std::abs(want[i]) + std::abs(bias[column]) + std::abs(old[i]) + off;
        ASSERT_NEAR(got[i], want[i], 8 * kU * largest + off)
            << DataTypeName(type) << " element " << i;
      }
    }
  }
}

// Of more groups than fit 32 bits with scales of 8 bits, the scales have fewer: the largest integers
// of one sign do not overflow. All scales are 1, so that only their unit and the result are rounded.
TEST_F(CudaQuantizedTest, LongSumsOfGroups) {
  const int in = 20000, out = 3;
  std::vector<float> values(in * out, -8.0f);
  for (int k = 0; k < in; ++k) values[k * out + 1] = k % 2 == 0 ? -8.0f : 7.0f;
  const HostWeights w(values, in, out, DataType::kF32);
  const auto packed = cuda_->PackMatrix(w.matrix(), false, DataType::kQ4);
  const double same = -8.0 * 127 * in;
  for (const int rows : {1, 33}) {
    const std::vector<float> x(rows * in, 127.0f);
    GuardedFloats got(rows * out);
    cuda_->MatMul(x.data(), rows, *packed, nullptr, false, got.data());
    for (int i = 0; i < rows * out; ++i) {
      EXPECT_NEAR(got[i], i % out == 1 ? same / 16 : same, 4 * kU * -same) << "element " << i;
    }
  }
}

TEST_F(CudaQuantizedTest, ZeroTinyAndBrokenRows) {
  const int in = 40, out = 33;
  const HostWeights w(random_.Normals(in * out), in, out, DataType::kF32);
  for (const DataType type : kTypes) {
    const auto packed = cuda_->PackMatrix(w.matrix(), false, type);
    for (const int rows : {3, 36}) {
      std::vector<float> x(rows * in), y(rows * out, 7.0f);
      x[in] = 1e-40f;
      x[2 * in + 39] = std::numeric_limits<float>::quiet_NaN();
      cuda_->MatMul(x.data(), rows, *packed, nullptr, false, y.data());
      for (int o = 0; o < out; ++o) {
        EXPECT_EQ(y[o], 0);
        EXPECT_EQ(y[out + o], 0);
        EXPECT_TRUE(std::isnan(y[2 * out + o])) << rows;
      }
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
  EXPECT_LE(held(DataType::kQ4), size_t{in} * out / 2 + in / 32 * out + out * 4 + 512);
}

}  // namespace
}  // namespace polysketch
