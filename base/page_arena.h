// Arrays that are read one behind the other for as long as they live (the weights of a model), side
// by side on huge pages. On their own, those below 2 MB would lie on pages of 4 KiB, where the
// hardware's prefetchers stop at every page and each page costs a walk of the tables; rounded up to
// huge pages each, they would waste a MB apiece.
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
  // Of address space; only what is written takes memory.
  static constexpr size_t kChunk = size_t{64} << 20;

  // `count` zeros; their memory is given back with the last array of their chunk. Any thread.
  template <typename T>
  std::shared_ptr<T[]> New(size_t count) {
    PS_CHECK(count <= SIZE_MAX / 4 / sizeof(T)) << "count=" << count;
    const std::shared_ptr<void> bytes = Bytes(count * sizeof(T));
    return {bytes, static_cast<T*>(bytes.get())};
  }

 private:
  std::shared_ptr<void> Bytes(size_t size);

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<uint8_t> chunk_;
  size_t left_ = 0;  // bytes of the chunk, at its end
  size_t size_ = 0;  // of the chunk
};

}  // namespace polysketch
