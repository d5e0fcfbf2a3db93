#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kThreads = 256;

// One thread block for each row.
__global__ void LogSumExpKernel(const float* x, int64_t width, float* out) {
  auto* scratch = SharedMemory<float>();
  const float* row = x + blockIdx.x * width;
  float top = row[0];
  bool bad = false;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    top = fmaxf(top, row[i]);
    bad = bad || row[i] != row[i];
  }
  top = BlockMax(top, kThreads, scratch);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += expf(row[i] - top);
  if (bad) sum = BitsFloat(0x7fc00000u);  // NaN, which fmaxf drops
  sum = BlockSum(sum, kThreads, scratch);
  if (threadIdx.x == 0) out[blockIdx.x] = top + logf(sum);
}

}  // namespace

void CudaBackend::LogSumExp(const float* x, int64_t rows, int64_t width, float* out) {
  device_->Launch(LogSumExpKernel, dim3(static_cast<unsigned>(rows)), kThreads,
                  kWarpSize * sizeof(float), x, width, out);
}

}  // namespace polysketch::cuda
