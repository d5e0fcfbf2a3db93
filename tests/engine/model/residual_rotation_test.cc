#include "engine/model/residual_rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/quantize.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

// R [width, width], row by row.
std::vector<float> MatrixOf(const ResidualRotation& rotation) {
  const auto D = static_cast<size_t>(rotation.width());
  std::vector<float> matrix(D * D);
  for (size_t i = 0; i < D; ++i) matrix[i * D + i] = 1;
  rotation.RotateRows(matrix, {}, nullptr);
  return matrix;
}

// The largest element of the matrix of each prime factor is 1 / sqrt(2), or the larger one of 1 -
// 2/p and 2/p; R's is their product.
double LargestElement(int width) {
  double largest = 1;
  for (int p = 2; width > 1; ++p) {
    for (; width % p == 0; width /= p) {
      largest *= p == 2 ? std::sqrt(0.5) : std::max(1 - 2.0 / p, 2.0 / p);
    }
  }
  return largest;
}

constexpr int kWidths[] = {1, 2, 7, 24, 45, 49, 121, 210, 576, 896, 1024};

// Elements are rounded to float32 once, of numbers below one.
TEST(ResidualRotationTest, IsOrthogonalAndSpreadsEachChannel) {
  for (const int width : kWidths) {
    SCOPED_TRACE(width);
    const std::vector<float> r = MatrixOf(ResidualRotation(width));
    const auto D = static_cast<size_t>(width);
    double error = 0, largest = 0;
    for (size_t i = 0; i < D; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (size_t k = 0; k < D; ++k) dot += static_cast<double>(r[i * D + k]) * r[j * D + k];
        error = std::max(error, std::abs(dot - (i == j ? 1 : 0)));
      }
    }
    for (const float x : r) largest = std::max(largest, std::abs(static_cast<double>(x)));
    EXPECT_LT(error, 1e-6);
    EXPECT_NEAR(largest, LargestElement(width), 1e-6);
  }
}

TEST(ResidualRotationTest, RowsAndColumnsOfAnyNumberTakeTheSameRotation) {
  testing::Random random(1);
  ThreadPool pool(3);
  for (const int width : {24, 45}) {
    const ResidualRotation rotation(width);
    const std::vector<float> r = MatrixOf(rotation);
    const auto D = static_cast<size_t>(width);
    for (const size_t count : {1, 15, 16, 50}) {
      const std::vector<float> rows = random.Normals(count * D);
      const std::vector<float> scale = random.Normals(width);
      std::vector<float> found = rows, on_threads = rows, columns(rows.size());
      rotation.RotateRows(found, scale, nullptr);
      rotation.RotateRows(on_threads, scale, &pool);
      EXPECT_EQ(on_threads, found);
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < D; ++j) {
          double expected = 0;
          for (size_t k = 0; k < D; ++k) {
            expected += static_cast<double>(rows[i * D + k]) * scale[k] * r[k * D + j];
          }
          EXPECT_NEAR(found[i * D + j], expected, 1e-5);
          columns[j * count + i] = rows[i * D + j];
        }
      }
      std::vector<float> plain = rows;
      rotation.RotateRows(plain, {}, &pool);
      rotation.RotateColumns(columns, &pool);
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < D; ++j) EXPECT_EQ(columns[j * count + i], plain[i * D + j]);
      }
    }
  }
}

TEST(ResidualRotationTest, ConjugatesADiagonal) {
  testing::Random random(2);
  for (const int width : {1, 24, 45}) {
    const ResidualRotation rotation(width);
    const std::vector<float> r = MatrixOf(rotation), scale = random.Normals(width);
    const std::vector<float> found = rotation.Conjugate(scale, nullptr);
    const auto D = static_cast<size_t>(width);
    for (size_t i = 0; i < D; ++i) {
      for (size_t j = 0; j < D; ++j) {
        double expected = 0;
        for (size_t k = 0; k < D; ++k) {
          expected += static_cast<double>(r[k * D + i]) * scale[k] * r[k * D + j];
        }
        EXPECT_NEAR(found[i * D + j], expected, 1e-5);
      }
    }
  }
}

// A channel of 100 beside others of order one: a step is 100 / 127. The rotation makes its share of
// any element at most 100 * 0.056 (LargestElement), to which the others add some 4: the step is a
// tenth, its square a hundredth.
TEST(ResidualRotationTest, RowsWithAnOutlierKeepTheirOtherChannels) {
  constexpr int kWidth = 576;
  const ResidualRotation rotation(kWidth);
  testing::Random random(3);
  std::vector<float> plain = random.Normals(kWidth);
  plain[77] = 100;
  std::vector<float> rotated = plain;
  rotation.RotateRows(rotated, {}, nullptr);
  const auto error = [](const std::vector<float>& row) {
    const QuantScale scale = QuantScale::Of(LargestMagnitude(row.data(), std::ssize(row), 1));
    double sum = 0;
    for (const float x : row) {
      const double off =
          static_cast<double>(x) - static_cast<double>(Quantize(x, scale)) * scale.scale;
      sum += off * off;
    }
    return sum;
  };
  EXPECT_LT(error(rotated), error(plain) / 36);
}

// The hash is that of a program in Python (mt19937_64 as the C++ standard defines it, a Kronecker
// product in numpy).
TEST(ResidualRotationTest, SameBitsEverywhere) {
  std::vector<float> row(24);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i * i) - 100;
  ResidualRotation(24).RotateRows(row, {}, nullptr);
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a of the bits
  for (const float x : row) {
    hash = (hash ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 5446078332135693504u);
}

}  // namespace
}  // namespace polysketch
