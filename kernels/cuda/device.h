// The GPU for the host code of this backend: one stream, memory, launches, and the first error.
// After an error no result may be used (Backend::status): further calls have undefined results, but
// neither crash nor block.
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
  // Opens the first device. FAILED_PRECONDITION if there is none, or if it is older than sm_80.
  static Result<std::unique_ptr<Device>> Open();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  cudaStream_t stream() const { return stream_; }
  const std::string& name() const { return name_; }
  int multiprocessors() const { return multiprocessors_; }
  // Bytes of dynamic shared memory that a thread block may have: 99 KB on some architectures, up to
  // 227 KB on others.
  int64_t shared_limit() const { return shared_limit_; }
  const Status& status() const { return status_; }
  // Bytes of the device's memory that are free, and bytes that this object allocated and holds, with
  // those of recordings.
  size_t FreeMemory();
  size_t held_memory() const { return held_ + recordings_; }

  // Stores the first error. An error during a recording only spoils the recording.
  void Check(cudaError_t error, const char* what);

  // Allocates `bytes` bytes, aligned to 256. Returns null after an error.
  void* Allocate(size_t bytes);
  void Free(void* memory);
  // Blocks of memory of states. Returned blocks are kept for the next TakeBlock of their size, which then
  // neither allocates nor waits. A TakeBlock of another size frees as many bytes of them as it allocates.
  void ReserveBlocks(size_t bytes, int64_t count);  // allocates `count` more
  void* TakeBlock(size_t bytes);
  void ReturnBlock(void* block, size_t bytes);
  // The host's memory may be changed or freed after the call. Small copies are staged and do not
  // wait for the device; large ones wait.
  void CopyIn(void* device, const void* host, size_t bytes);
  // Waits for all earlier work and for the copy.
  void CopyOut(void* host, const void* device, size_t bytes);
  void Copy(void* to, const void* from, size_t bytes);
  void Zero(void* memory, size_t bytes);
  void Synchronize();

  // While rehearsing, copies to the host do nothing, and a launch only loads its kernel; memory is
  // allocated.
  void Rehearse(bool rehearsing) { rehearsing_ = rehearsing; }
  bool rehearsing() const { return rehearsing_; }
  // Loads a kernel now. Otherwise its first launch does, which takes device memory then.
  template <typename... Parameters>
  void Load(void (*kernel)(Parameters...)) {
    if (!status_.ok()) return;
    cudaFuncAttributes attributes{};
    Check(cudaFuncGetAttributes(&attributes, kernel), "a kernel");
  }

  // --- recording: step_graphs.h ---
  // Until EndRecording, launches are recorded and not run.
  void BeginRecording();
  // Returns none, and nothing has run, if a call since BeginRecording cannot be recorded:
  // allocations, copies, waiting; or if the recording finds no memory. An error since then is not an
  // error of the device.
  struct Recording {
    cudaGraphExec_t graph = nullptr;  // null: none
    size_t bytes = 0;                 // of device memory, by the device's count of free memory
  };
  Recording EndRecording();
  void Replay(const Recording& recording);
  void DeleteRecording(const Recording& recording);
  // Sets memory aside, from which recordings take theirs: `bytes` bytes with those of recordings that
  // exist. Later recordings take free memory.
  void ReserveRecordings(size_t bytes);
  // Bytes of all recordings.
  size_t recordings_memory() const { return recordings_; }
  // Number of times that an array of the workspace moved. Recordings hold addresses.
  uint64_t moves() const { return moves_; }
  void OnMove() { ++moves_; }
  // Returns whether a recording is in progress, and makes it invalid.
  bool SpoilRecording() {
    spoiled_ = recording_;
    return recording_;
  }

  template <typename... Parameters, typename... Arguments>
  void Launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
              Arguments... arguments) {
    LaunchKernel(false, kernel, grid, threads, shared, arguments...);
  }
  // For kernels that call AfterEarlierKernels (ptx.cuh): they may start while earlier kernels still
  // run (programmatic dependent launch), unless POLYSKETCH_CUDA_DEPENDENT_LAUNCH=off.
  template <typename... Parameters, typename... Arguments>
  void LaunchDependent(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
                       Arguments... arguments) {
    LaunchEarly(true, kernel, grid, threads, shared, arguments...);
  }
  // LaunchDependent if `early`. The kernel may also wait for counters that the kernel before it
  // raises, if that kernel calls LetNextKernelBegin.
  template <typename... Parameters, typename... Arguments>
  void LaunchEarly(bool early, void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared,
                   Arguments... arguments) {
    LaunchKernel(early && dependent_launch_, kernel, grid, threads, shared, arguments...);
  }
  // Returns whether a library may launch its kernels now, and counts it as a launch.
  bool BeforeLaunch();

 private:
  // Bytes of pinned memory for copies to the device, and the largest copy that is staged in it.
  static constexpr size_t kStageBytes = size_t{4} << 20;
  static constexpr size_t kMaxStaged = kStageBytes / 4;

  Device() = default;

  // Frees kept blocks until they were `bytes` bytes together, or none is left.
  void FreeOtherBlocks(size_t bytes);
  // Makes a recording of a graph, without an error of the device if there is no memory.
  Recording Instantiate(cudaGraph_t graph);
  void DropAside();
  void RefillAside();

  template <typename... Parameters, typename... Arguments>
  void LaunchKernel(bool early, void (*kernel)(Parameters...), dim3 grid, int threads,
                    size_t shared, Arguments... arguments) {
    if (rehearsing_) return Load(kernel);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !BeforeLaunch()) return;
    Check(LaunchOn(stream_, early, kernel, grid, threads, shared,
                   static_cast<Parameters>(arguments)...),
          "a kernel's launch");
  }

  cudaStream_t stream_ = nullptr;
  std::string name_;
  int multiprocessors_ = 0;
  int64_t shared_limit_ = 0;
  bool dependent_launch_ = false;
  Status status_;
  // POLYSKETCH_CUDA_FAIL_AFTER: launches until an injected error; -1: never.
  int64_t fail_after_ = -1;
  bool rehearsing_ = false;
  bool recording_ = false, spoiled_ = false;
  std::unordered_map<void*, size_t> sizes_;  // of allocations
  size_t held_ = 0;
  std::unordered_map<size_t, std::vector<void*>> free_blocks_;  // by size
  uint64_t moves_ = 0;
  size_t recordings_ = 0;       // bytes of recordings
  size_t recordings_goal_ = 0;  // bytes of recordings and set aside for them, together
  std::vector<std::pair<void*, size_t>> aside_;
  uint8_t* stage_ = nullptr;  // [kStageBytes], pinned
  size_t staged_ = 0;         // bytes of it that copies may still read
};

// Owns an array in the memory of a device.
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
  // Makes the array at least `size` elements long. Growing loses the contents.
  T* Grow(Device* device, size_t size) {
    if (size > size_) {
      if (device->SpoilRecording()) return data_;  // too small, but nothing runs
      device->OnMove();
      *this = DeviceArray();  // frees the memory first
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
