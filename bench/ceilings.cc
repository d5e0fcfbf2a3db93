#include "bench/ceilings.h"

#include <algorithm>
#include <vector>

#include "bench/timing.h"

namespace polysketch::bench {
namespace {

constexpr int kPasses = 9;
// Contiguous tasks for each thread: enough for balance, and each long enough for the prefetchers.
constexpr int64_t kChunksPerThread = 8;
constexpr int64_t kPage = 4096;

__attribute__((target("avx2"))) int64_t SumChunk(const uint8_t* data, size_t bytes) {
  using Vector __attribute__((vector_size(32))) = int64_t;
  // Eight independent loads; xor is faster than any level of memory.
  Vector sums[8] = {};
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j) sums[j] ^= *reinterpret_cast<const Vector*>(data + i + 32 * j);
  }
  for (int j = 1; j < 8; ++j) sums[0] ^= sums[j];
  return sums[0][0];
}

volatile int64_t sink;  // a use of the results

}  // namespace

BandwidthProbe::BandwidthProbe(size_t bytes) : memory_((bytes / kPage + 1) * kPage) {}

double BandwidthProbe::BytesPerSecond(ThreadPool* pool) const {
  const int64_t chunks = kChunksPerThread * pool->threads();
  const int64_t pages = static_cast<int64_t>(memory_.size() / kPage);
  std::vector<double> seconds(kPasses);
  constexpr double kPassSeconds = 0.02;  // minimum; a small set is read repeatedly
  for (double& pass : seconds) {
    pass = SecondsPerCall(kPassSeconds, [&] {
      pool->ParallelFor(chunks, [&](int64_t task, int) {
        const int64_t first = pages * task / chunks, last = pages * (task + 1) / chunks;
        sink = SumChunk(memory_.data() + first * kPage, (last - first) * kPage);
      });
    });
  }
  return static_cast<double>(memory_.size()) / Median(seconds);
}

}  // namespace polysketch::bench
