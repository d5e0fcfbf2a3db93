#include "bench/ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "bench/timing.h"

namespace polysketch::bench {
namespace {

constexpr int kPasses = 9;
// A thread's share is read in this many contiguous tasks: enough to balance, long enough for the
// hardware's prefetchers.
constexpr int64_t kChunksPerThread = 8;
constexpr int64_t kChunkStep = 4096;

__attribute__((target("avx2"))) uint64_t SumChunk(const uint8_t* data, size_t bytes) {
  // Eight independent loads in flight; xor costs less than any memory level delivers.
  __m256i acc[8] = {};
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      acc[j] = _mm256_xor_si256(
          acc[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  for (int j = 1; j < 8; ++j) acc[0] = _mm256_xor_si256(acc[0], acc[j]);
  return static_cast<uint64_t>(_mm256_extract_epi64(acc[0], 0));
}

volatile uint64_t g_sink;  // keeps the loops from being optimised away

}  // namespace

BandwidthProbe::BandwidthProbe(size_t bytes) : memory_((bytes / kChunkStep + 1) * kChunkStep) {}

double BandwidthProbe::BytesPerSecond(ThreadPool* pool) const {
  const int64_t chunks = kChunksPerThread * pool->threads();
  const int64_t pages = static_cast<int64_t>(memory_.size() / kChunkStep);
  std::vector<double> seconds;
  const double budget = 0.02;  // a pass over a small set is repeated to be measurable
  for (int pass = 0; pass < kPasses; ++pass) {
    int repeats = 0;
    const Stopwatch watch;
    do {
      pool->ParallelFor(chunks, [&](int64_t task, int) {
        const int64_t first = pages * task / chunks, last = pages * (task + 1) / chunks;
        g_sink = SumChunk(memory_.data() + first * kChunkStep, (last - first) * kChunkStep);
      });
      ++repeats;
    } while (watch.Seconds() < budget);
    seconds.push_back(watch.Seconds() / repeats);
  }
  return static_cast<double>(memory_.size()) / Median(seconds);
}

}  // namespace polysketch::bench
