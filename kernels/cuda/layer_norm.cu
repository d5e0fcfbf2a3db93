#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kWarps = 4;

// One warp for each row. A lane reads only the elements that it writes, so out may be x.
__global__ void LayerNormKernel(const float* x, int64_t rows, int width, const float* scale,
                                const float* bias, float* out) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (row >= rows) return;
  const float* from = x + row * width;
  float* to = out + row * width;
  float sum = 0;
  for (int i = lane; i < width; i += kWarpSize) sum += from[i];
  const float mean = WarpSum(sum) / static_cast<float>(width);
  float squares = 0;
  for (int i = lane; i < width; i += kWarpSize) {
    const float centred = from[i] - mean;
    squares = fmaf(centred, centred, squares);
  }
  const float variance = WarpSum(squares) / static_cast<float>(width);
  const float inverse = 1.0f / sqrtf(variance + 1e-5f);
  for (int i = lane; i < width; i += kWarpSize) {
    to[i] = fmaf((from[i] - mean) * inverse, scale[i], bias[i]);
  }
}

}  // namespace

void CudaBackend::LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                            float* out) {
  device_->Launch(LayerNormKernel, dim3(CeilDiv(rows, kWarps)), kWarps * kWarpSize, 0, x, rows,
                  width, norm.scale, norm.bias, out);
}

}  // namespace polysketch::cuda
