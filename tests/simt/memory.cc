#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "tests/simt/simt.h"

namespace simt {
namespace {

constexpr size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xa5;

// Begin and size of every array.
std::map<unsigned char*, size_t>& Arrays() {
  static std::map<unsigned char*, size_t> arrays;
  return arrays;
}

size_t held = 0;

struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;
};
std::vector<HostCopy> transfers;  // not made yet

void CheckGuard(const unsigned char* array, size_t size) {
  for (size_t i = 0; i < kGuard; ++i) {
    if (array[size + i] != kGuardByte || array[-1 - static_cast<std::ptrdiff_t>(i)] != kGuardByte) {
      std::fprintf(stderr, "simt: launch %lld wrote beside an array of %zu bytes\n",
                   static_cast<long long>(Launches()), size);
      std::abort();
    }
  }
}

}  // namespace

void* Allocate(size_t bytes) {
  if (bytes > FreeBytes()) return nullptr;
  held += bytes;
  const size_t whole = (bytes + 2 * kGuard + 255) / 256 * 256;
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(256, whole));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kGuardByte, whole);
  unsigned char* array = memory + kGuard;
  std::memset(array, 0xff, bytes);
  Arrays()[array] = bytes;
  return array;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  auto* array = static_cast<unsigned char*>(memory);
  const auto found = Arrays().find(array);
  if (found == Arrays().end()) {
    std::fprintf(stderr, "simt: an address is freed that was not allocated\n");
    std::abort();
  }
  CheckGuard(array, found->second);
  held -= found->second;
  Arrays().erase(found);
  std::free(array - kGuard);
}

DeviceRange ArrayAt(const void* address) {
  auto* at = static_cast<unsigned char*>(const_cast<void*>(address));
  auto after = Arrays().upper_bound(at);
  if (after == Arrays().begin()) return {};
  const auto& [begin, size] = *--after;
  return at < begin + size ? DeviceRange{begin, size} : DeviceRange{};
}

size_t FreeBytes() {
  static const char* const limit = std::getenv("POLYSKETCH_SIMT_MEMORY");
  const size_t all = limit == nullptr ? size_t{1} << 40 : std::strtoull(limit, nullptr, 10);
  return all > held ? all - held : 0;
}

bool Take(size_t bytes) {
  if (bytes > FreeBytes()) return false;
  held += bytes;
  return true;
}

void Give(size_t bytes) { held -= bytes; }

void CheckGuards() {
  for (const auto& [array, size] : Arrays()) CheckGuard(array, size);
}

void Transfer(void* to, const void* from, size_t bytes) { transfers.push_back({to, from, bytes}); }

void PerformTransfers() {
  for (const HostCopy& copy : transfers) std::memcpy(copy.to, copy.from, copy.bytes);
  transfers.clear();
}

}  // namespace simt
