// What kernels do under the emulation: launches, bytes of device memory, tensor core instructions.
// Bytes are counted for kernels that polysketch_simt_counted compiled, whose loads and stores call
// CountAccess (instrumented.cc). Each sector of 32 bytes counts once in a launch, read and written:
// what a device transfers whose L2 is empty at first and large enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {

struct KernelCount {
  const void* kernel = nullptr;
  int64_t launches = 0;
  int64_t read = 0, written = 0;  // bytes
  int64_t products = 0;           // mma.m16n8k16 of a warp; m16n8k32 of bytes counts twice
};

// From StartCounting to StopCounting, which returns the counts in the order of first launches.
void StartCounting();
std::vector<KernelCount> StopCounting();
// The name of a kernel of this program, as `nm -C` has it.
std::string KernelName(const void* kernel);

// --- what the machine calls ---
void CountLaunch(const void* kernel);
void CountAccess(const void* address, size_t bytes, bool write);
void CountProducts(int count);

}  // namespace simt
