#include "kernels/cuda/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace polysketch::cuda {
namespace {

// Has machine code for a device if the library has.
__global__ void Nothing() {}

// Why there is no device. The runtime calls a missing driver and an old one insufficient alike.
Status NoDevice(cudaError_t found) {
  int driver = 0, runtime = 0;  // 1000 major + 10 minor
  if (found != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
    return FailedPrecondition("no CUDA device: ", cudaGetErrorString(found));
  }
  if (driver == 0) return FailedPrecondition("no CUDA device: no NVIDIA driver");
  return FailedPrecondition("the NVIDIA driver is too old: expected one for CUDA ", runtime / 1000,
                            ".0 or newer, found one for CUDA ", driver / 1000, ".",
                            driver % 1000 / 10);
}

}  // namespace

Result<std::unique_ptr<Device>> Device::Open() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) return NoDevice(found);
  if (count == 0) return FailedPrecondition("no CUDA device");
  std::unique_ptr<Device> device(new Device());
  cudaDeviceProp properties{};
  device->Check(cudaSetDevice(0), "cudaSetDevice");
  device->Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  if (device->status().ok() && properties.major < 8) {
    return FailedPrecondition("CUDA device ", properties.name, ": expected compute capability 8.0 ",
                              "or newer, found ", properties.major, ".", properties.minor);
  }
  cudaFuncAttributes attributes{};
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, Nothing);
      device->status().ok() && error != cudaSuccess) {
    return FailedPrecondition(
        "CUDA device ", properties.name, ": expected a library with code for ",
        "compute capability ", properties.major, ".", properties.minor,
        " (POLYSKETCH_CUDA_ARCHITECTURES of the build), found: ", cudaGetErrorString(error));
  }
  int shared = 0;
  device->Check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                "the limit of shared memory");
  device->shared_limit_ = shared;
  device->Check(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "a stream");
  device->Check(cudaMallocHost(reinterpret_cast<void**>(&device->stage_), kStageBytes),
                "pinned memory");
  if (!device->status().ok()) return device->status();
  device->name_ = properties.name;
  device->multiprocessors_ = properties.multiProcessorCount;
  const char* wish = std::getenv("POLYSKETCH_CUDA_DEPENDENT_LAUNCH");
  device->dependent_launch_ =
      properties.major >= 9 && (wish == nullptr || std::strcmp(wish, "off") != 0);
  if (const char* after = std::getenv("POLYSKETCH_CUDA_FAIL_AFTER")) {
    device->fail_after_ = std::atoll(after);
  }
  return Result<std::unique_ptr<Device>>(std::move(device));
}

Device::~Device() {
  for (const auto& [bytes, blocks] : free_blocks_) {
    for (void* block : blocks) Free(block);
  }
  DropAside();
  if (stage_ != nullptr) {
    cudaStreamSynchronize(stream_);  // copies may still read it
    cudaFreeHost(stage_);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

size_t Device::FreeMemory() {
  size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

void Device::Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess || !status_.ok()) return;
  // The caller runs the ops again without recording them. If the error is one of the device, it
  // occurs again then.
  if (SpoilRecording()) return;
  status_ = Internal("CUDA: ", what, ": ", cudaGetErrorString(error));
}

bool Device::BeforeLaunch() {
  if (!status_.ok() || rehearsing_) return false;
  if (fail_after_ == 0) {
    Check(cudaErrorLaunchFailure, "injected by POLYSKETCH_CUDA_FAIL_AFTER");
    return false;
  }
  if (fail_after_ > 0) --fail_after_;
  return true;
}

void* Device::Allocate(size_t bytes) {
  if (!status_.ok() || bytes == 0 || SpoilRecording()) return nullptr;
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes), StrCat("cudaMalloc of ", bytes, " bytes").c_str());
  if (!status_.ok()) return nullptr;
  sizes_[memory] = bytes;
  held_ += bytes;
  return memory;
}

void Device::Free(void* memory) {
  PS_CHECK(!recording_) << "memory is freed in the middle of a step";
  // Running kernels may still use the memory.
  Check(cudaStreamSynchronize(stream_), "before cudaFree");
  Check(cudaFree(memory), "cudaFree");
  const auto size = sizes_.find(memory);
  held_ -= size->second;
  sizes_.erase(size);
}

void Device::ReserveBlocks(size_t bytes, int64_t count) {
  std::vector<void*>& blocks = free_blocks_[bytes];
  for (int64_t i = 0; i < count; ++i) {
    void* block = Allocate(bytes);
    if (block == nullptr) return;
    blocks.push_back(block);
  }
}

void* Device::TakeBlock(size_t bytes) {
  std::vector<void*>& blocks = free_blocks_[bytes];
  if (blocks.empty()) {
    FreeOtherBlocks(bytes);
    return Allocate(bytes);
  }
  void* block = blocks.back();
  blocks.pop_back();
  return block;
}

void Device::FreeOtherBlocks(size_t bytes) {
  size_t freed = 0;
  for (auto& [size, blocks] : free_blocks_) {
    for (; freed < bytes && !blocks.empty(); blocks.pop_back(), freed += size) Free(blocks.back());
  }
}

void Device::ReturnBlock(void* block, size_t bytes) {
  if (block != nullptr) free_blocks_[bytes].push_back(block);
}

void Device::CopyIn(void* device, const void* host, size_t bytes) {
  if (!status_.ok() || bytes == 0 || SpoilRecording()) return;
  // CUDA may read pageable memory after the call where the device reads it directly. So the copy
  // is made from pinned memory, or waited for.
  if (bytes > kMaxStaged) {
    Check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copy to device");
    return Synchronize();
  }
  if (staged_ + bytes > kStageBytes) Synchronize();
  uint8_t* from = stage_ + staged_;
  std::memcpy(from, host, bytes);
  staged_ += (bytes + 15) / 16 * 16;
  Check(cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, stream_), "copy to device");
}

void Device::CopyOut(void* host, const void* device, size_t bytes) {
  if (!status_.ok() || rehearsing_ || bytes == 0 || SpoilRecording()) return;
  Check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "copy to host");
  Synchronize();
}

void Device::Copy(void* to, const void* from, size_t bytes) {
  if (!status_.ok() || bytes == 0 || SpoilRecording()) return;
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy on device");
}

void Device::Zero(void* memory, size_t bytes) {
  if (!status_.ok() || bytes == 0 || SpoilRecording()) return;
  Check(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemset");
}

void Device::Synchronize() {
  if (!status_.ok() || SpoilRecording()) return;
  Check(cudaStreamSynchronize(stream_), "the device");
  staged_ = 0;
}

void Device::BeginRecording() {
  PS_CHECK(!recording_);
  recording_ = true;
  spoiled_ = !status_.ok();
  if (!spoiled_) {
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a recording");
  }
}

Device::Recording Device::EndRecording() {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  Recording recording;
  Check(cudaStreamIsCapturing(stream_, &capturing), "a recording");
  if (capturing != cudaStreamCaptureStatusNone) {
    Check(cudaStreamEndCapture(stream_, &graph), "a recording");
  }
  if (graph != nullptr && !spoiled_) recording = Instantiate(graph);
  recording_ = false;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!spoiled_) return recording;
  cudaGetLastError();  // so that the next call does not report the error
  if (recording.graph != nullptr) DeleteRecording(recording);
  return Recording();
}

Device::Recording Device::Instantiate(cudaGraph_t graph) {
  Recording recording;
  DropAside();
  const size_t before = FreeMemory();
  Check(cudaGraphInstantiateWithFlags(&recording.graph, graph, 0), "a recording");
  // The upload takes device memory. Without it the first replay does, where the lack of memory
  // would be an error of the device.
  if (recording.graph != nullptr) Check(cudaGraphUpload(recording.graph, stream_), "a recording");
  const size_t after = FreeMemory();
  recording.bytes = before > after ? before - after : 0;
  recordings_ += recording.bytes;
  RefillAside();
  return recording;
}

void Device::Replay(const Recording& recording) {
  if (BeforeLaunch()) Check(cudaGraphLaunch(recording.graph, stream_), "a recorded step");
}

void Device::DeleteRecording(const Recording& recording) {
  // The recording may be running.
  Check(cudaStreamSynchronize(stream_), "before a recording is deleted");
  Check(cudaGraphExecDestroy(recording.graph), "a recording");
  recordings_ -= recording.bytes;
  RefillAside();
}

void Device::ReserveRecordings(size_t bytes) {
  recordings_goal_ = std::max(recordings_goal_, bytes);
  RefillAside();
}

void Device::DropAside() {
  for (const auto& [memory, bytes] : aside_) {
    Check(cudaFree(memory), "cudaFree");
    held_ -= bytes;
  }
  aside_.clear();
}

void Device::RefillAside() {
  size_t missing = recordings_goal_ > recordings_ ? recordings_goal_ - recordings_ : 0;
  for (const auto& [memory, bytes] : aside_) missing -= std::min(missing, bytes);
  void* memory = nullptr;
  if (missing == 0) return;
  if (cudaMalloc(&memory, missing) != cudaSuccess) {
    cudaGetLastError();  // recordings will take what is free
    return;
  }
  aside_.emplace_back(memory, missing);
  held_ += missing;
}

}  // namespace polysketch::cuda
