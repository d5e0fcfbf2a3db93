// AlignedBuffer: an owning array, aligned to cache lines. An array of a huge page or more is
// aligned to huge pages and requests them: a decode step reads tens of megabytes of state and
// weights, for which 4 KiB pages cost TLB misses.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/huge_page.h"

namespace polysketch {

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Allocates `size` zeroed elements.
  explicit AlignedBuffer(size_t size) : AlignedBuffer(Untouched(size)) {
    if (size > 0) std::memset(data(), 0, size * sizeof(T));
  }
  // Allocates `size` elements of any value. Large memory is not touched, which takes no time.
  static AlignedBuffer Untouched(size_t size) {
    AlignedBuffer buffer;
    buffer.Allocate(size);
    return buffer;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data_.get(), size_}; }
  std::span<const T> span() const { return {data_.get(), size_}; }

 private:
  static constexpr size_t kCacheLine = 64;
  struct Free {
    void operator()(T*) const { std::free(allocation); }
    void* allocation = nullptr;
  };

  void Allocate(size_t size) {
    if (size == 0) return;
    PS_CHECK(size <= SIZE_MAX / 2 / sizeof(T)) << "size=" << size;
    // Whole cache lines, which kernels may load as such.
    const size_t bytes = (size * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    if (bytes >= kHugePage) {
      void* const memory = AllocateHugePages(bytes);
      data_ = {static_cast<T*>(memory), Free{memory}};
    } else {
      // malloc, aligned here: aligned_alloc of glibc 2.36 does not reuse a free chunk of exactly
      // the size that it needs, so that blocks which come and go spread over ever more memory.
      void* const memory = std::malloc(bytes + kCacheLine);
      PS_CHECK(memory != nullptr) << "out of memory for " << bytes << " bytes";
      void* aligned = memory;
      size_t space = bytes + kCacheLine;
      std::align(kCacheLine, bytes, aligned, space);
      data_ = {static_cast<T*>(aligned), Free{memory}};
    }
    size_ = size;
  }

  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace polysketch
