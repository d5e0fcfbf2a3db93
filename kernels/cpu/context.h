// What the ops of the cpu backend share: the thread pool, and scratch memory that is kept from call
// to call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/product_units.h"

namespace polysketch::cpu {

class Context {
 public:
  explicit Context(int threads, const ProductUnits& units = {})
      : pool_(threads), scratch_(threads), units_(units) {}

  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.threads(); }
  const ProductUnits& units() const { return units_; }

  // Into how many parts each of `items` pieces of work is cut, 1 to `units` (parts.h).
  int64_t Parts(int64_t items, int64_t units) const { return PartsFor(threads(), items, units); }

  // At least `floats` floats for `thread` until its task ends. The contents are undefined.
  float* Scratch(int thread, int64_t floats) {
    AlignedBuffer<float>& buffer = scratch_[thread];
    if (buffer.size() < static_cast<size_t>(floats)) buffer = AlignedBuffer<float>(floats);
    return buffer.data();
  }

  // At least `bytes` bytes that all threads share until the op returns.
  uint8_t* Shared(int64_t bytes) {
    if (shared_.size() < static_cast<size_t>(bytes)) shared_ = AlignedBuffer<uint8_t>(bytes);
    return shared_.data();
  }

  // Calls fn(first, last, thread) for ranges of rows [first, last). There are several ranges for
  // each thread, so that threads of different speed end together, but none is shorter than `grain`
  // rows: a step of one row must not pay for a barrier. If that leaves threads without a range of
  // many rows, ranges are as short as a quarter of it.
  template <typename Fn>
  void ParallelRows(int64_t rows, int64_t grain, const Fn& fn) {
    const auto share = [&](int64_t ranges) { return (rows + ranges - 1) / ranges; };
    int64_t least = grain;
    if (rows >= 4 * grain) least = std::min(grain, std::max(share(threads()), (grain + 3) / 4));
    const int64_t size = std::max(share(int64_t{4} * threads()), least);
    const int64_t tasks = (rows + size - 1) / size;
    pool_.ParallelFor(tasks, [&](int64_t task, int thread) {
      const int64_t first = task * size;
      fn(first, first + size < rows ? first + size : rows, thread);
    });
  }

 private:
  ThreadPool pool_;
  std::vector<AlignedBuffer<float>> scratch_;
  AlignedBuffer<uint8_t> shared_;
  const ProductUnits units_;
};

}  // namespace polysketch::cpu
