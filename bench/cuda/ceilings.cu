// polysketch-cuda-bench --ceilings: the bandwidth of this device by kernels of 16-byte accesses, by a
// ring of bulk copies and by a memcpy node of a graph, and the time that thread blocks on all its
// multiprocessors take to wait for each other.
#include <cstdio>
#include <cstdlib>

#include "bench/cuda/bench.h"
#include "bench/cuda/ceilings.cuh"

namespace polysketch::cuda {
namespace {

constexpr int64_t kBytes = int64_t{2} << 30;  // of the array that is read
constexpr int64_t kPieces = kBytes / 16, kWords = kBytes / 4;
constexpr int kBlocksOfSm = 8;
constexpr int kBarriers = 2000, kTokenRounds = 100;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

class Ceilings {
 public:
  explicit Ceilings(Bench* bench)
      : bench_(*bench),
        device_(*bench->device()),
        from_(&device_, kWords),
        to_(&device_, kWords),
        sums_(&device_, size_t{kBlocksOfSm} * kCeilingThreads * device_.multiprocessors()) {
    device_.Launch(FillWords, dim3(blocks()), kCeilingThreads, 0, from_.data(), kWords);
    for (int64_t i = 0; i < kWords; ++i) want_ ^= static_cast<uint32_t>(i + 1) * 2654435761u;
  }

  void MeasureBandwidth() {
    const auto* from = reinterpret_cast<const uint4*>(from_.data());
    auto* to = reinterpret_cast<uint4*>(to_.data());
    Report("copy by 16-byte accesses, read and written", 2 * kBytes, [&] {
      device_.Launch(CopyPieces, dim3(blocks()), kCeilingThreads, 0, from, to, kPieces);
    });
    ReadWords(to);
    CheckSums("the copy is not what was copied");
    Report("read by 16-byte accesses", kBytes, [&] { ReadWords(from); });
    CheckSums("the read has not read all words");
    int major = 0;
    device_.Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "a device");
    if (major >= 9) {
      Report("read by rings of 8 bulk copies of 16 KB", kBytes, [&] {
        device_.Zero(sums_.data(), sums_.size() * sizeof(uint32_t));
        device_.Launch(ReadByRing, dim3(device_.multiprocessors()), kRingThreads,
                       ReadRing::SharedBytes(kRingPiece), reinterpret_cast<const uint8_t*>(from),
                       kBytes, sums_.data());
      });
      CheckSums("the rings have not read all words");
    }
    const double largest = largest_;
    Report("copy by a memcpy node of a graph, read and written", 2 * kBytes,
           [&] { device_.Copy(to_.data(), from_.data(), kBytes); });
    std::printf("largest bandwidth of a kernel: %.0f GB/s\n", largest);
  }

  void MeasureLatency() {
    const auto grid = static_cast<unsigned>(device_.multiprocessors());
    DeviceArray<int32_t> words(&device_, (2 * grid + 1) * kFlagStride);
    int32_t* const checked = words.data() + grid * kFlagStride;
    int32_t* const faults = checked + grid * kFlagStride;
    if (grid > kCeilingThreads) Fail("more multiprocessors than threads of a block");
    const auto measure = [&](const char* name, int waits, const auto& launch) {
      const auto zeroed = [&](int32_t* check) {
        device_.Zero(words.data(), words.size() * sizeof(int32_t));
        launch(RoundCheck{check, faults});
      };
      zeroed(checked);
      int32_t found = -1;
      device_.CopyOut(&found, faults, sizeof(found));
      if (found != 0) Fail("a barrier let a thread block pass too early, or did not end");
      const double seconds = bench_.Seconds([&] { zeroed(nullptr); });
      std::printf("%-58s %10.2f us\n", name, seconds * 1e6 / waits);
    };
    std::printf("%u thread blocks on as many multiprocessors:\n", grid);
    measure("barrier by a counter", kBarriers, [&](const RoundCheck& check) {
      device_.Launch(CounterBarriers, dim3(grid), kCeilingThreads, 0, words.data(), kBarriers,
                     check);
    });
    measure("barrier by a flag of each block", kBarriers, [&](const RoundCheck& check) {
      device_.Launch(FlagBarriers, dim3(grid), kCeilingThreads, 0, words.data(), kBarriers, check);
    });
    const int hops = kTokenRounds * static_cast<int>(grid);
    measure("a flag from one block to the next", hops, [&](const RoundCheck& check) {
      device_.Launch(FlagRounds, dim3(grid), 1, 0, words.data(), kTokenRounds, check.faults);
    });
  }

 private:
  unsigned blocks() const { return static_cast<unsigned>(kBlocksOfSm * device_.multiprocessors()); }
  void ReadWords(const uint4* from) {
    device_.Launch(ReadPieces, dim3(blocks()), kCeilingThreads, 0, from, kPieces, sums_.data());
  }
  void CheckSums(const char* error) {
    std::vector<uint32_t> sums(sums_.size());
    device_.CopyOut(sums.data(), sums_.data(), sums.size() * sizeof(uint32_t));
    uint32_t found = 0;
    for (const uint32_t sum : sums) found ^= sum;
    if (found != want_) Fail(error);
  }
  void Report(const char* name, double bytes, const std::function<void()>& work) {
    const double gigabytes = bytes / bench_.Seconds(work) * 1e-9;
    largest_ = std::max(largest_, gigabytes);
    std::printf("%-58s %10.0f GB/s\n", name, gigabytes);
    std::fflush(stdout);
  }

  Bench& bench_;
  Device& device_;
  DeviceArray<uint32_t> from_, to_, sums_;
  uint32_t want_ = 0;  // the exclusive or of all words
  double largest_ = 0;
};

}  // namespace

void BenchCeilings(Bench* bench) {
  Ceilings ceilings(bench);
  ceilings.MeasureBandwidth();
  ceilings.MeasureLatency();
}

}  // namespace polysketch::cuda
