// Limits of this machine, measured in the same run as the results that are compared with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace polysketch::bench {

// Bytes a second that threads read from a working set of `bytes`, read repeatedly: the limit of a
// decode step that reads as much.
class BandwidthProbe {
 public:
  explicit BandwidthProbe(size_t bytes);
  // Median of several passes by all threads of `pool`.
  double BytesPerSecond(ThreadPool* pool) const;

 private:
  AlignedBuffer<uint8_t> memory_;
};

// Operations a second of products in registers, by the fastest instructions of each kind on this
// machine. A multiply-add is two operations. 0: no such instructions.
struct ProductPeaks {
  double f32 = 0;   // FMA, AVX2 or AVX-512
  double bf16 = 0;  // pairs of bf16 into float32: AVX512-BF16 or AMX
  double int8 = 0;  // unsigned times signed bytes into int32: AVX-512 VNNI or AMX
};
ProductPeaks MeasureProductPeaks(ThreadPool* pool);

}  // namespace polysketch::bench
