// Prefetches of a decode step under StateFormat::kQ8. A head's time is that of its bytes from
// memory, and a part of its work reads none. So the loops of a head prefetch the cache lines of the
// head after it, a few in each iteration: memory is busy throughout, and a loop finds its operands
// in L2. A burst of prefetches would fill the line-fill buffers and stop the loads after it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

// Lines that an iteration prefetches of a loop over vectors of floats in cache, over vectors that
// are scaled, over vectors of features that are made (attention_far_bytes.h), and of a product over
// pairs (integer_tile.h): together about the lines of a head.
constexpr int kLinesOfAVector = 1;
constexpr int kLinesOfAScaledVector = 2;
constexpr int kLinesOfAFeatureVector = 3;
constexpr int kLinesOfAPair = 2;
// Lines that are prefetched at once before work without such a loop: a part of a core's line-fill
// buffers.
constexpr int kLinesAtOnce = 8;

// The lines that a loop prefetches: those at base + offsets[0], base + offsets[1], ...
struct LoopLines {
  const char* base;
  const int32_t* offsets;
  template <int kLines>
  __attribute__((always_inline)) void Prefetch(int64_t iteration) const {
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) {
      __builtin_prefetch(base + offsets[iteration * kLines + i], 0, /*locality=*/2);  // to L2
    }
  }
};

// In the place of LoopLines in loops that prefetch nothing.
struct NoLines {
  template <int kLines>
  __attribute__((always_inline)) void Prefetch(int64_t /*iteration*/) const {}
};

// The lines of one head, in the order in which its loops read them. The loops of the head before it
// take them in turn.
class LinePrefetcher {
 public:
  // offsets: `count` lines, in bytes from `base`, and as many more as a loop may take.
  LinePrefetcher(const void* base, const int32_t* offsets, int64_t count)
      : base_(static_cast<const char*>(base)), next_(offsets), end_(offsets + count) {}

  // The next `count` lines.
  LoopLines Take(int64_t count) {
    const LoopLines lines{base_, next_};
    next_ = std::min(next_ + count, end_);
    return lines;
  }
  // The lines of a loop over `size` floats.
  LoopLines TakeForVectors(int64_t size) {
    return Take((size + kLanes - 1) / kLanes * kLinesOfAVector);
  }
  // Prefetches the next `count` lines at once.
  void Prefetch(int64_t count) {
    const LoopLines lines = Take(count);
    for (int64_t i = 0; i < count; ++i) lines.Prefetch<1>(i);
  }

 private:
  const char* base_;
  const int32_t *next_, *end_;
};

#include "kernels/cpu/isa_end.inc"
