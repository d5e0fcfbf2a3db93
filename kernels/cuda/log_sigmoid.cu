#include "kernels/cuda/log_sigmoid.cuh"

#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void LogSigmoidKernel(const float* x, int64_t size, float* out) {
  AfterEarlierKernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < size) out[i] = LogSigmoid(x[i]);
}

}  // namespace

void CudaBackend::LogSigmoid(const float* x, int64_t size, float* out) {
  device_->LaunchDependent(LogSigmoidKernel, dim3(CeilDiv(size, kThreads)), kThreads, 0, x, size,
                           out);
}

}  // namespace polysketch::cuda
