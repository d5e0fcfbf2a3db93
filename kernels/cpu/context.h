// What the ops of the cpu backend share: the pool and scratch memory that outlives a call.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/units.h"

namespace polysketch::cpu {

class Context {
 public:
  explicit Context(int threads, const ProductUnits& units = {})
      : pool_(threads), scratch_(threads), units_(units) {}

  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.threads(); }
  const ProductUnits& units() const { return units_; }

  // At least `floats` floats that belong to `thread` until its task ends; contents are left over.
  float* Scratch(int thread, int64_t floats) {
    AlignedBuffer<float>& buffer = scratch_[thread];
    if (buffer.size() < static_cast<size_t>(floats)) buffer = AlignedBuffer<float>(floats);
    return buffer.data();
  }

  // At least `bytes` bytes that every thread sees, until the op returns.
  uint8_t* Shared(int64_t bytes) {
    if (shared_.size() < static_cast<size_t>(bytes)) shared_ = AlignedBuffer<uint8_t>(bytes);
    return shared_.data();
  }

  // fn(first, last, thread) over ranges of rows: several ranges a thread so that an uneven machine
  // balances, none shorter than `grain` rows (a step of one row must not pay for a barrier).
  template <typename Fn>
  void ParallelRows(int64_t rows, int64_t grain, const Fn& fn) {
    const int64_t wanted = static_cast<int64_t>(threads()) * 4;
    int64_t size = (rows + wanted - 1) / wanted;
    if (size < grain) size = grain;
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
