// Launches a kernel on a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace polysketch::cuda {

// Bytes of dynamic shared memory that a kernel may have without an attribute.
constexpr size_t kPlainShared = 48 << 10;

// `early`: the kernel may start before the kernels launched earlier have ended. It must call
// AfterEarlierKernels (ptx.cuh) before it reads what they write or writes what they use.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOn(cudaStream_t stream, bool early, void (*kernel)(Parameters...), dim3 grid,
                     int threads, size_t shared, Arguments&&... arguments) {
  if (shared > kPlainShared) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel,
                            static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOn(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, int threads,
                     size_t shared, Arguments&&... arguments) {
  return LaunchOn(stream, false, kernel, grid, threads, shared,
                  std::forward<Arguments>(arguments)...);
}

}  // namespace polysketch::cuda
