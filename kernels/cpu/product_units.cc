#include "kernels/cpu/product_units.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

namespace polysketch::cpu {
namespace {

// Independent accumulators: more than latency times throughput of any known core needs.
constexpr int kChains = 16;
constexpr int kSteps = 1000;
// The fastest run counts, which no other process interrupted.
constexpr int kRuns = 9;
// Ratio of the rates above which dot products are used. Measured ratios are far above or far below
// it, so that every start of the program decides alike.
constexpr double kMinRatio = 1.3;

struct MultiplyAdd {
  __attribute__((target("avx512f"), always_inline)) static void Step(__m512& acc, __m512 one) {
    asm volatile("vfmadd231ps %1, %1, %0" : "+v"(acc) : "v"(one));
  }
};
struct Dot {
  __attribute__((target("avx512f"), always_inline)) static void Step(__m512& acc, __m512 one) {
    asm volatile("vdpbf16ps %1, %1, %0" : "+v"(acc) : "v"(one));
  }
};

template <typename Product>
__attribute__((target("avx512f"))) void Loop() {
  const __m512 one = _mm512_set1_ps(1);  // as bf16 pairs: 0 and 1
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_setzero_ps();
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) Product::Step(acc[j], one);
  }
}

double Seconds(void (*loop)()) {
  using Clock = std::chrono::steady_clock;
  double best = 1;
  for (int i = 0; i < kRuns; ++i) {
    const Clock::time_point start = Clock::now();
    loop();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

bool Bf16DotsAreFaster() {
  static const bool faster = 2 * Seconds(Loop<MultiplyAdd>) > kMinRatio * Seconds(Loop<Dot>);
  return faster;
}

}  // namespace polysketch::cpu
