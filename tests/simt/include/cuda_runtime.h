// What kernels/cuda uses of CUDA's runtime header, for the host: words of the language, the warp
// functions, and the runtime calls, whose device is this process's own memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/simt/counts.h"
#include "tests/simt/simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using dim3 = simt::Dim3;
using simt::blockDim;
using simt::blockIdx;
using simt::gridDim;
using simt::threadIdx;

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline void __syncthreads() { simt::SyncThreads(); }
inline void __syncwarp() { simt::SyncWarp(); }

namespace simt {
template <typename T>
struct ShuffleInput {
  T value;
  int source;
};
template <typename T>
T Shuffle(T value, int source) {
  const ShuffleInput<T> input{value, source};
  T out;
  Collective(
      "shfl",
      [](const void* const* in, void* const* out) {
        for (int lane = 0; lane < kWarp; ++lane) {
          const auto& want = *static_cast<const ShuffleInput<T>*>(in[lane]);
          const auto& from = *static_cast<const ShuffleInput<T>*>(in[want.source % kWarp]);
          *static_cast<T*>(out[lane]) = from.value;
        }
      },
      &input, &out);
  return out;
}
inline int Lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % kWarp;
}
}  // namespace simt

template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  return simt::Shuffle(value, source);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return simt::Shuffle(value, simt::Lane() ^ mask);
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorLaunchFailure = 719
};
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                 ? "no error"
         : error == cudaErrorInvalidValue     ? "invalid argument"
         : error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorInsufficientDriver
             ? "CUDA driver version is insufficient for CUDA runtime version"
         : error == cudaErrorNoKernelImageForDevice
             ? "no kernel image is available for execution on the device"
             : "unspecified launch failure";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

using cudaStream_t = struct CUstream_st*;

// A recording: what was launched, in order.
struct CUgraph_st {
  std::vector<std::function<void()>> launches;
  size_t bytes() const { return launches.size() * simt::kGraphLaunchBytes; }
};
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraph_st*;
namespace simt {
inline cudaGraph_t recording = nullptr;  // under way
inline int64_t graph_launches = 0;
// What CUDA refuses in the middle of a recording ends the program: kernels/cuda/device.cu knows.
inline void NotRecorded(const char* what) {
  if (recording == nullptr) return;
  std::fprintf(stderr, "simt: %s in the middle of a recording\n", what);
  std::abort();
}
}  // namespace simt
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  simt::NotRecorded("a recording");
  simt::recording = new CUgraph_st;
  return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status =
      simt::recording == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = std::exchange(simt::recording, nullptr);
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                 unsigned long long) {
  if (!simt::Take(graph->bytes())) return cudaErrorMemoryAllocation;
  *exec = new CUgraph_st(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  simt::Give(graph->bytes());
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  ++simt::graph_launches;
  for (const auto& launch : graph->launches) launch();
  return cudaSuccess;
}

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  simt::NotRecorded("cudaStreamSynchronize");
  simt::PerformTransfers();
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  simt::NotRecorded("cudaMalloc");
  *memory = simt::Allocate(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  simt::NotRecorded("cudaFree");
  simt::Free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = simt::FreeBytes();
  return cudaSuccess;
}
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t) {
  simt::NotRecorded("cudaMemcpyAsync");
  if (bytes > 0) simt::Transfer(to, from, bytes);
  if (kind != cudaMemcpyHostToDevice) simt::PerformTransfers();
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  simt::NotRecorded("cudaMemsetAsync");
  simt::PerformTransfers();
  if (bytes > 0) std::memset(memory, value, bytes);
  return cudaSuccess;
}

// POLYSKETCH_SIMT_DRIVER: the CUDA version of the driver, 1000 major + 10 minor; 0: there is none.
inline cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  const char* driver = std::getenv("POLYSKETCH_SIMT_DRIVER");
  *version = driver == nullptr ? 13000 : std::atoi(driver);
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  *count = driver < 13000 ? 0 : 1;
  return *count == 0 ? cudaErrorInsufficientDriver : cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
struct cudaDeviceProp {
  char name[256] = "emulation";
  int major = 8, minor = 0, multiProcessorCount = 4;
  size_t sharedMemPerBlockOptin = simt::SharedLimit();
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = cudaDeviceProp();
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrComputeCapabilityMajor };
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value =
      attribute == cudaDevAttrComputeCapabilityMajor ? 9 : static_cast<int>(simt::SharedLimit());
  return cudaSuccess;
}

struct cudaFuncAttributes {};
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel kernel) {
  // As on a device that the library has no code for.
  if (std::getenv("POLYSKETCH_SIMT_NO_CODE") != nullptr) return cudaErrorNoKernelImageForDevice;
  simt::Load(reinterpret_cast<const void*>(kernel));
  return cudaSuccess;
}
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  return static_cast<size_t>(bytes) <= simt::SharedLimit() ? cudaSuccess : cudaErrorInvalidValue;
}
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  simt::Load(reinterpret_cast<const void*>(kernel));
  const std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  const auto run = [kernel, values, grid = config->gridDim, block = config->blockDim,
                    shared = config->dynamicSmemBytes] {
    simt::CountLaunch(reinterpret_cast<const void*>(kernel));
    simt::Run(grid, block, shared, [&] { std::apply(kernel, values); });
  };
  simt::recording == nullptr ? run() : simt::recording->launches.push_back(run);
  return cudaSuccess;
}
