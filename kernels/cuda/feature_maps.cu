// The feature maps of the kinds linear, performer and affine_square, and of far parts of windows.
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

__global__ void LinearKernel(const float* x, int64_t size, int width, const float* factors,
                             int heads, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  // elu(x) + 1: exp(x) below zero.
  const float feature = x[i] > 0 ? x[i] + 1.0f : expf(x[i]);
  out[i] = factors == nullptr ? feature : factors[i / width % heads] * feature;
}

__global__ void ScaleKernel(const float* x, int64_t size, float factor, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) out[i] = x[i] * factor;
}

// out = exp(out - |x'|^2 / 2) / sqrt(m). One warp for each row.
__global__ void PerformerKernel(const float* scaled, int64_t rows, int d, int m, float* out) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= rows) return;
  float squares = 0;
  for (int i = lane; i < d; i += kWarpSize) {
    squares = fmaf(scaled[row * d + i], scaled[row * d + i], squares);
  }
  const float half_norm = 0.5f * WarpSum(squares);
  const float factor = 1.0f / sqrtf(static_cast<float>(m));
  for (int i = lane; i < m; i += kWarpSize) {
    out[row * m + i] = expf(out[row * m + i] - half_norm) * factor;
  }
}

// One thread for each element of out, of which a row has `stride`.
__global__ void AffineKernel(const float* x, int64_t rows, int width, int stride,
                             const float* terms, int heads, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * stride) return;
  const int64_t row = i / stride;
  const int column = static_cast<int>(i % stride) - 1;
  const float* term = terms == nullptr ? nullptr : terms + row % heads * 2;
  if (column < 0) {
    out[i] = term == nullptr ? 1.0f : term[0];
  } else if (column < width) {
    const float value = x[row * width + column];
    out[i] = term == nullptr ? value : term[1] * value;
  } else {
    out[i] = 0;
  }
}

// One thread for each element of out [rows][heads][size].
__global__ void HeadMapsKernel(const float* x, int64_t elements, int heads, int width,
                               const float* maps, const float* biases, int size, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  const int64_t of_head = i / size;
  const int column = static_cast<int>(i % size), head = static_cast<int>(of_head % heads);
  const float* map = maps + static_cast<int64_t>(head) * width * size + column;
  float sum = biases[head * size + column];
  for (int k = 0; k < width; ++k) {
    sum = fmaf(x[of_head * width + k], map[static_cast<int64_t>(k) * size], sum);
  }
  out[i] = sum;
}

}  // namespace

void CudaBackend::LinearFeatures(const float* x, int64_t rows, int width, const float* factors,
                                 int heads, float* out) {
  device_->Launch(LinearKernel, dim3(CeilDiv(rows * width, 256)), 256, 0, x, rows * width, width,
                  factors, heads, out);
}

void CudaBackend::PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) {
  const int d = static_cast<int>(omega.in()), m = static_cast<int>(omega.out());
  float* scaled = floats_[0].Grow(device_.get(), rows * d);
  const float factor = static_cast<float>(std::pow(static_cast<double>(d), -0.25));
  device_->Launch(ScaleKernel, dim3(CeilDiv(rows * d, 256)), 256, 0, x, rows * d, factor, scaled);
  MatMul(scaled, rows, omega, nullptr, false, out);
  device_->Launch(PerformerKernel, dim3(CeilDiv(rows, 4)), 4 * kWarpSize, 0, scaled, rows, d, m,
                  out);
}

void CudaBackend::AffineFeatures(const float* x, int64_t rows, int width, const float* terms,
                                 int heads, float* out) {
  const int stride = (width + 8) / 8 * 8;
  device_->Launch(AffineKernel, dim3(CeilDiv(rows * stride, 256)), 256, 0, x, rows, width, stride,
                  terms, heads, out);
}

void CudaBackend::HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                           const float* biases, int size, float* out) {
  const int64_t elements = rows * heads * size;
  device_->Launch(HeadMapsKernel, dim3(CeilDiv(elements, 256)), 256, 0, x, elements, heads, width,
                  maps, biases, size, out);
}

}  // namespace polysketch::cuda
