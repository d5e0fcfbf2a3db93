// PageArena: allocates arrays side by side on huge pages, for arrays that are read one after the
// other and live long (the weights of a model). Allocated one by one, an array below 2 MB would be
// on pages of 4 KiB, where hardware prefetchers stop at every page and each page costs a page walk.
// Rounding every array up to huge pages would waste about 1 MB for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/check.h"

namespace polysketch {

class PageArena {
 public:
  static constexpr size_t kAlignment = 64;
  // Size in bytes of a reservation of address space. Only pages that are written take memory.
  static constexpr size_t kChunk = size_t{64} << 20;

  // Returns an array of `count` zeros. The memory of a chunk is freed with its last array. May be
  // called from any thread.
  template <typename T>
  std::shared_ptr<T[]> New(size_t count) {
    PS_CHECK(count <= SIZE_MAX / 4 / sizeof(T)) << "count=" << count;
    const std::shared_ptr<void> bytes = Bytes(count * sizeof(T));
    return {bytes, static_cast<T*>(bytes.get())};
  }

 private:
  std::shared_ptr<void> Bytes(size_t size);

  std::mutex mutex_;  // guards the members below
  std::shared_ptr<uint8_t> chunk_;
  size_t left_ = 0;  // unused bytes at the end of the chunk
  size_t size_ = 0;  // size of the chunk in bytes
};

}  // namespace polysketch
