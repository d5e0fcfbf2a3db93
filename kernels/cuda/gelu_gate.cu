#include "kernels/cuda/backend.h"
#include "kernels/cuda/gelu.cuh"

namespace polysketch::cuda {
namespace {

__global__ void GeluGateKernel(const float* up, int64_t rows, int hidden, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * hidden) return;
  const float* row = up + i / hidden * 2 * hidden;
  const int64_t column = i % hidden;
  out[i] = row[column] * Gelu(row[hidden + column]);
}

}  // namespace

void CudaBackend::GeluGate(const float* up, int64_t rows, int hidden, float* out) {
  device_->Launch(GeluGateKernel, dim3(CeilDiv(rows * hidden, 256)), 256, 0, up, rows, hidden, out);
}

}  // namespace polysketch::cuda
