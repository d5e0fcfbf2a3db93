// f of the random kinds: one product for every matrix, neighbours multiplied.
#include "base/check.h"
#include "kernels/cuda/ops.h"

namespace polysketch::cuda {
namespace {

__global__ void MultiplyRows(const float* a, const float* b, int64_t rows, int width, int out_row,
                             float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * out_row) return;
  const int64_t row = i / out_row, column = i % out_row;
  out[i] = column < width ? a[row * width + column] * b[row * width + column] : 0.0f;
}

}  // namespace

void ApplyRandomSketch(Context& ctx, const RandomSketch& sketch, const float* x, int64_t rows,
                       float* out) {
  const int r = sketch.size, padded = (r + 7) / 8 * 8;
  const size_t vectors = sketch.levels[0].size();
  PS_CHECK(vectors == size_t{1} << sketch.levels.size()) << vectors;
  const int64_t one = rows * r;
  // What a level reads, and the two products that make one vector of the next.
  float* level = ctx.work.floats[0].Grow(ctx.device, static_cast<int64_t>(vectors) / 2 * one);
  float* left = ctx.work.floats[1].Grow(ctx.device, 2 * one);
  float* right = left + one;
  for (size_t l = 0; l < sketch.levels.size(); ++l) {
    const auto matrices = sketch.levels[l];
    const bool last = l + 1 == sketch.levels.size();
    for (size_t j = 0; j < matrices.size(); j += 2) {
      const float* in_left = l == 0 ? x : level + static_cast<int64_t>(j) * one;
      const float* in_right = l == 0 ? x : level + static_cast<int64_t>(j + 1) * one;
      MatMul(ctx, in_left, rows, Cast(*matrices[j]), nullptr, false, left);
      MatMul(ctx, in_right, rows, Cast(*matrices[j + 1]), nullptr, false, right);
      // Vectors j and j + 1 are read: the place of j / 2 <= j is free.
      float* to = last ? out : level + static_cast<int64_t>(j / 2) * one;
      const int width = last ? padded : r;
      ctx.device->Launch(MultiplyRows, dim3(CeilDiv(rows * width, 256)), 256, 0, left, right, rows,
                         r, width, to);
    }
  }
}

}  // namespace polysketch::cuda
