// Launches a kernel on a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace polysketch::cuda {

// Bytes of dynamic shared memory that a kernel may have without an attribute.
constexpr size_t kPlainShared = 48 << 10;

// When a kernel may begin.
enum class Order {
  kAfter,    // when the kernel before it has ended
  kOverlap,  // when all thread blocks of the kernel before it run or have ended, if that kernel calls
             // LetNextKernelBegin (ptx.cuh)
};

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOn(cudaStream_t stream, Order order, void (*kernel)(Parameters...), dim3 grid,
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
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  if (order == Order::kOverlap) {
    config.attrs = &overlap;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, kernel,
                            static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

}  // namespace polysketch::cuda
