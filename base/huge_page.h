// Memory in huge pages.
#pragma once

#include <cstddef>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "base/check.h"

namespace polysketch {

// The size in bytes of an x86-64 huge page, the unit of madvise(MADV_HUGEPAGE).
inline constexpr size_t kHugePage = size_t{2} << 20;

// Returns `bytes` uninitialised bytes, aligned to a huge page, which std::free releases. Requests huge
// pages for all but the rest after the last whole one: no more memory is taken than is counted.
inline void* AllocateHugePages(size_t bytes) {
  void* memory = nullptr;
  PS_CHECK(posix_memalign(&memory, kHugePage, bytes) == 0)
      << "out of memory for " << bytes << " bytes";
#if defined(__linux__)
  madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace polysketch
