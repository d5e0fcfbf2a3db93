// The GPU as the host code of this backend sees it: one stream, memory, launches, and the first
// error. After an error nothing that the backend computed may be used (Backend::status): results of
// later calls are undefined, but none of them crashes or blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/launch.h"

namespace polysketch::cuda {

class Device {
 public:
  // Opens the first device; FAILED_PRECONDITION where there is none.
  static Result<std::unique_ptr<Device>> Open();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }
  const Status& status() const { return status_; }
  // Free bytes of its memory, and those that Allocate gave and Free did not take back.
  size_t FreeMemory();
  size_t held_memory() const { return held_; }

  // Keeps the first error; one in a recording spoils that.
  void Check(cudaError_t error, const char* what);

  // Memory of at least `bytes`, aligned to 256; null after an error.
  void* Allocate(size_t bytes);
  void Free(void* memory);
  // Blocks of states that grow. One that comes back stays here for the next of its size: a block
  // that was made once is never asked for again, and taking it waits for nothing.
  void ReserveBlocks(size_t bytes, int64_t count);
  void* TakeBlock(size_t bytes);
  void ReturnBlock(void* block, size_t bytes);
  void CopyIn(void* device, const void* host, size_t bytes);
  // Waits for everything before it.
  void CopyOut(void* host, const void* device, size_t bytes);
  void Copy(void* to, const void* from, size_t bytes);
  void Zero(void* memory, size_t bytes);
  void Synchronize();

  // Launches do nothing and no result comes out while `rehearsing`: memory is made, nothing runs.
  void Rehearse(bool rehearsing) { rehearsing_ = rehearsing; }

  // --- recording: step_graphs.h ---
  // From here to EndRecording launches are recorded and nothing runs.
  void BeginRecording();
  // Null, and nothing was done, when something in between cannot be recorded: memory, copies,
  // waiting. An error in between is not the device's yet.
  cudaGraphExec_t EndRecording();
  void Replay(cudaGraphExec_t graph);
  void DeleteRecording(cudaGraphExec_t graph);
  // Arrays of the workspace that have moved so far: recordings hold addresses.
  uint64_t moves() const { return moves_; }
  void OnMove() { ++moves_; }
  // True, and the recording is void, if one is under way.
  bool SpoilRecording() {
    spoiled_ = recording_;
    return recording_;
  }

  template <typename... Parameters, typename... Arguments>
  void Launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
              Arguments... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !BeforeLaunch()) return;
    Check(LaunchOn(stream_, kernel, grid, threads, shared, static_cast<Parameters>(arguments)...),
          "a kernel's launch");
  }

 private:
  Device() = default;
  bool BeforeLaunch();

  cudaStream_t stream_ = nullptr;
  std::string name_;
  int multiprocessors_ = 0;
  Status status_;
  // POLYSKETCH_CUDA_FAIL_AFTER: launches until an injected error; -1: never.
  int64_t fail_after_ = -1;
  bool rehearsing_ = false;
  bool recording_ = false, spoiled_ = false;
  std::unordered_map<void*, size_t> sizes_;  // of what is held
  size_t held_ = 0;
  std::unordered_map<size_t, std::vector<void*>> free_blocks_;  // by size
  uint64_t moves_ = 0;
};

// Memory of a device that is given back with the object.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device* device, size_t size)
      : device_(device),
        data_(static_cast<T*>(device->Allocate(size * sizeof(T)))),
        size_(data_ == nullptr ? 0 : size) {}
  ~DeviceArray() {
    if (data_ != nullptr) device_->Free(data_);
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  // At least `size` elements; what was in it is lost when it has to grow.
  T* Grow(Device* device, size_t size) {
    if (size > size_) {
      if (device->SpoilRecording()) return data_;  // too small, but nothing will run
      device->OnMove();
      *this = DeviceArray();  // first back with the old one
      *this = DeviceArray(device, size + size / 4);
    }
    return data_;
  }

 private:
  Device* device_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

inline unsigned CeilDiv(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace polysketch::cuda
