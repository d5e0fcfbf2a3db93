// The learned sketch by products of the whole batch, for every shape and weight format.
// learned_sketch_fused.cu has the fused kernel for 16-bit weights.
#include "kernels/cuda/backend.h"
#include "kernels/cuda/gelu.cuh"

namespace polysketch::cuda {
namespace {

__global__ void GeluKernel(float* x, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) x[i] = Gelu(x[i]);
}

// sqrt(r) tanh(x1 x2 / sqrt(r)), with the zero columns up to `padded`.
__global__ void JoinKernel(const float* x1, const float* x2, int64_t rows, int r, int padded,
                           float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * padded) return;
  const int64_t from = i / padded * r + i % padded;
  const float root = sqrtf(static_cast<float>(r));
  out[i] = i % padded < r ? root * tanhf(x1[from] * x2[from] / root) : 0.0f;
}

}  // namespace

void CudaBackend::LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows,
                                float* out) {
  if (SketchIsFused(net)) return RunFusedSketch(net, x, rows, out, nullptr);
  const int r = net.size, padded = (r + 7) / 8 * 8, hidden = 8 * r;
  const int widest = net.input > r ? net.input : r;
  float* normed = floats_[0].Grow(device_.get(), rows * widest);
  float* up = floats_[1].Grow(device_.get(), rows * hidden);
  float* branches = floats_[2].Grow(device_.get(), 2 * rows * r);
  for (int branch = 0; branch < 2; ++branch) {
    float* result = branches + branch * rows * r;
    for (int level = 0; level < 2; ++level) {
      const SketchNetwork::Level& weights = net.branch[branch][level];
      Norm(level == 0 ? x : result, rows, level == 0 ? net.input : r, weights.norm, normed);
      MatMul(normed, rows, *weights.up, nullptr, false, up);
      device_->Launch(GeluKernel, dim3(CeilDiv(rows * hidden, 256)), 256, 0, up, rows * hidden);
      MatMul(up, rows, *weights.down, nullptr, false, result);
    }
  }
  device_->Launch(JoinKernel, dim3(CeilDiv(rows * padded, 256)), 256, 0, branches,
                  branches + rows * r, rows, r, padded, out);
}

}  // namespace polysketch::cuda
