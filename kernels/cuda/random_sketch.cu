// The random sketch. A level is one launch and one product: a tile holds columns of both matrices
// of a pair, and the two sums of an output element are multiplied in registers. A sketch of degree
// 2 (p = 4) reads x and writes the result only; more levels also store the vectors between levels.
//
// Products are float32, as the matrices are: with d = 64 and r = 32 a row takes 8 kFLOP and 384
// bytes, and a GPU without tensor cores needs about the same time for both.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/float_tile.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kPairColumns = 2 * kFloatStep;  // columns of a tile for each product of a pair
constexpr int kMaxPairs = 16;                 // pairs of a launch: their matrices are its arguments

struct PairMatrices {
  const float *left[kMaxPairs], *right[kMaxPairs];  // each [in][r]
};

// A tile of vector blockIdx.z of a level, out [pairs][rows][out_row]; columns from r on are zero.
// x is [rows][in] at the first level, whose vectors are all products of x, and [2 pairs][rows][in]
// at later levels.
template <bool kFirst>
__global__ void __launch_bounds__(kFloatThreads)
    SketchLevel(const float* x, int64_t rows, int in, PairMatrices matrices, int r, int out_row,
                float* out) {
  const int pair = static_cast<int>(blockIdx.z);
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kFloatRows;
  const int column0 = static_cast<int>(blockIdx.y) * kPairColumns;
  const float *left = matrices.left[pair], *right = matrices.right[pair];
  const auto rows_of = [=](const float* from) {
    return
        [=](int row, int64_t k) { return row0 + row < rows ? from[(row0 + row) * in + k] : 0.0f; };
  };
  const auto columns_of = [=](const float* w) {
    return [=](int64_t k, int column) {
      return column0 + column < r ? w[k * r + column0 + column] : 0.0f;
    };
  };
  float sums[4][4] = {};  // two columns of the left product, the same two of the right product
  if constexpr (kFirst) {
    const auto left_columns = columns_of(left), right_columns = columns_of(right);
    const auto both = [=](int64_t k, int column) {
      return column < kPairColumns ? left_columns(k, column)
                                   : right_columns(k, column - kPairColumns);
    };
    AddFloatProducts(in, rows_of(x), both, sums);
  } else {
    for (int side = 0; side < 2; ++side) {
      float half[4][2] = {};
      AddFloatProducts(in, rows_of(x + (2 * pair + side) * rows * in),
                       columns_of(side == 0 ? left : right), half);
      for (int i = 0; i < 4; ++i) {
        for (int c = 0; c < 2; ++c) sums[i][2 * side + c] = half[i][c];
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int c = 0; c < 2; ++c) {
      const int64_t row = row0 + threadIdx.x / kFloatStep + kFloatStep * i;
      const int column = column0 + static_cast<int>(threadIdx.x) % kFloatStep + kFloatStep * c;
      if (row >= rows || column >= out_row) continue;
      out[(pair * rows + row) * out_row + column] = column < r ? sums[i][c] * sums[i][c + 2] : 0.0f;
    }
  }
}

const float* Floats(const Matrix& matrix) {
  PS_CHECK(matrix.type() == DataType::kF32) << DataTypeName(matrix.type());
  return Cast(matrix).floats();
}

}  // namespace

void CudaBackend::ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                                    float* out) {
  const int r = sketch.size, padded = (r + 7) / 8 * 8;
  PS_CHECK(sketch.levels[0].size() == size_t{1} << sketch.levels.size());
  const float* from = x;
  for (size_t level = 0; level < sketch.levels.size(); ++level) {
    const auto matrices = sketch.levels[level];
    const int pairs = static_cast<int>(matrices.size() / 2);
    const bool first = level == 0, last = level + 1 == sketch.levels.size();
    const int in = first ? sketch.input : r, out_row = last ? padded : r;
    float* to = last ? out : floats_[level % 2].Grow(device_.get(), pairs * rows * r);
    for (int done = 0; done < pairs; done += kMaxPairs) {
      const int count = std::min(kMaxPairs, pairs - done);
      PairMatrices arguments{};
      for (int i = 0; i < count; ++i) {
        arguments.left[i] = Floats(*matrices[2 * (done + i)]);
        arguments.right[i] = Floats(*matrices[2 * (done + i) + 1]);
      }
      const dim3 grid(CeilDiv(rows, kFloatRows), CeilDiv(r, kPairColumns), count);
      device_->Launch(first ? SketchLevel<true> : SketchLevel<false>, grid, kFloatThreads,
                      FloatTileShared<4>(), first ? from : from + 2 * done * rows * in, rows, in,
                      arguments, r, out_row, to + done * rows * out_row);
    }
    from = to;
  }
}

}  // namespace polysketch::cuda
