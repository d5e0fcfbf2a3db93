// What this machine reaches, measured in the same run as what is compared with it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace polysketch::bench {

// Bytes a second that threads read from a working set passed over and over: the ceiling of a decode
// step that reads that much.
class BandwidthProbe {
 public:
  explicit BandwidthProbe(size_t bytes);
  // Median of several passes by all of `pool`.
  double BytesPerSecond(ThreadPool* pool) const;

 private:
  AlignedBuffer<uint8_t> memory_;
};

// Throughput of register-resident products in operations a second (a multiply-add is two), by the
// fastest instructions of each kind that this machine has; 0 where it has none of them.
struct ProductPeaks {
  double f32 = 0;   // FMA, AVX2 or AVX-512
  double bf16 = 0;  // pairs of bf16 into float32: AVX512-BF16 or AMX
  double int8 = 0;  // unsigned times signed bytes into int32: AVX-512 VNNI or AMX
};
ProductPeaks MeasureProductPeaks(ThreadPool* pool);

}  // namespace polysketch::bench
