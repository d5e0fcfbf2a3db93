// A small SIMT machine on the host. The threads of a block are fibers of one operating system
// thread; a thread runs until it needs others: __syncthreads, a warp collective. So a kernel's own
// source runs here unchanged (include/cuda_runtime.h gives its words their meaning), and what a GPU
// leaves to chance is provoked on purpose:
// - the order of blocks is drawn from the seed, so that none may count on being the last one;
// - the order of warps is drawn from the seed, and a warp runs as far ahead of the others as
//   barriers allow, so that a missing barrier shows as a wrong result;
// - shared memory begins as NaN in every block, and has exactly the size asked for;
// - each cp.async copies at once or when it is waited for, by a coin of the seed, so that a missing
//   wait shows, and a missing barrier in front of it too; bulk copies likewise (bulk_copy.cc), and a
//   warp may be left after each arrival at an mbarrier;
// - a copy from the host to the device is made as late as the stream allows, so that a host array
//   that changes meanwhile shows;
// - a write beside an array of device memory ends the program;
// - lanes of a warp that meet in different collectives, and barriers that some thread never
//   reaches, end the program with a message.
// Blocks run one after the other. Atomics between blocks are plain operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace simt {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline constexpr int kWarp = 32;

// Of the running thread.
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

// Runs a kernel: `body` once for every thread of every block.
void Run(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& body);

// Whether a thread of a kernel is running.
bool InKernel();
// A function of this program with a name of its own, for counts.cc.
const void* AnchorFunction();
// Schedules of later launches are drawn from this seed.
void Seed(uint64_t seed);
// Kernels launched so far.
int64_t Launches();
// A kernel is loaded by its first launch, or before. Kernels loaded so far.
void Load(const void* kernel);
int64_t LoadedKernels();
void UnloadKernels();

// Device memory: NaN at first, with guards on both sides, which are checked after every launch.
void* Allocate(size_t bytes);
void Free(void* memory);
void CheckGuards();
// The array of device memory that has this address; size 0: none.
struct DeviceRange {
  const unsigned char* begin = nullptr;
  size_t size = 0;
};
DeviceRange ArrayAt(const void* address);
// What Allocate may still give: POLYSKETCH_SIMT_MEMORY bytes together; without it, more than there
// is.
size_t FreeBytes();
// Memory that the runtime takes for itself. Take returns false, and takes nothing, if less is free.
bool Take(size_t bytes);
void Give(size_t bytes);
// Bytes that a recording takes for each launch in it: about those of a GPU.
inline constexpr size_t kGraphLaunchBytes = 10 << 10;

// Bytes of shared memory that a thread block may have: 227 KB, as on an H100, or what SetSharedLimit
// said last.
size_t SharedLimit();
void SetSharedLimit(size_t bytes);
// Copies `bytes` bytes before the next launch, or at the next PerformTransfers.
void Transfer(void* to, const void* from, size_t bytes);
void PerformTransfers();

void* DynamicShared();
void SyncThreads();
// A barrier of `threads` threads that name it.
void SyncNamed(int id, int threads);
void SyncWarp();

// Every lane gives `bytes` bytes at `in`; when the last of the warp has come, `combine(warp)` runs
// once with the 32 inputs and outputs; then each lane's `out` is filled.
using Combine = void (*)(const void* const* in, void* const* out);
void Collective(const char* name, Combine combine, const void* in, void* out);

// cp.async of this thread.
void CopyAsync(void* to, const void* from, int bytes, int valid);
void CommitCopies();
void WaitCopies(int pending_groups);

// mbarriers and cp.async.bulk (kernels/cuda/bulk_copy.cuh).
void InitBarrier(uint64_t* barrier, uint32_t count);
void FenceBarriers();
void ArriveAt(uint64_t* barrier, uint32_t bytes);
void ArriveAfterCopies(uint64_t* barrier);
void AwaitPhase(const uint64_t* barrier, uint32_t parity);
void CopyBulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier);

// Software twins of the tensor core instructions of kernels/cuda/ptx.cuh.
void MmaBf16(float c[4], const uint32_t a[4], const uint32_t b[2]);
void MmaF16(float c[4], const uint32_t a[4], const uint32_t b[2]);
void MmaBytes(int32_t c[4], const uint32_t a[4], const uint32_t b[2]);
// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
void LoadMatrix4(uint32_t out[4], const void* row, bool transpose);

}  // namespace simt
