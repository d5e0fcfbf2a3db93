#include "base/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/huge_page.h"

namespace polysketch {
namespace {

size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

#if defined(__SANITIZE_ADDRESS__)
// Every array is its own allocation, so that the sanitizer detects a read past its end.
constexpr bool kShared = false;
#else
constexpr bool kShared = true;
#endif

// Maps `size` zeroed bytes, aligned to a huge page.
std::shared_ptr<uint8_t> Map(size_t size) {
  // A mapping may begin at any page: map one huge page more and unmap both ends.
  const size_t mapped = size + kHugePage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) EndProcess("cannot allocate memory for weights", std::strerror(errno));
  auto* first = static_cast<uint8_t*>(memory);
  const size_t before =
      RoundUp(reinterpret_cast<uintptr_t>(first), kHugePage) - reinterpret_cast<uintptr_t>(first);
  if (before > 0) munmap(first, before);
  munmap(first + before + size, kHugePage - before);
  first += before;
  madvise(first, size, MADV_HUGEPAGE);  // best effort
  return {first, [size](uint8_t* p) { munmap(p, size); }};
}

// Allocates `size` zeroed bytes outside any chunk.
std::shared_ptr<void> Alone(size_t size) {
  void* memory = std::aligned_alloc(PageArena::kAlignment, size);
  PS_CHECK(memory != nullptr) << "out of memory for " << size << " bytes";
  std::fill_n(static_cast<uint8_t*>(memory), size, uint8_t{0});
  return {memory, std::free};
}

}  // namespace

std::shared_ptr<void> PageArena::Bytes(size_t size) {
  size = RoundUp(std::max<size_t>(size, 1), kAlignment);
  if (!kShared) return Alone(size);
  std::lock_guard lock(mutex_);
  if (size > left_) {
    size_ = left_ = std::max(RoundUp(size, kHugePage), kChunk);
    chunk_ = Map(size_);
  }
  uint8_t* memory = chunk_.get() + (size_ - left_);
  left_ -= size;
  return {chunk_, memory};
}

}  // namespace polysketch
