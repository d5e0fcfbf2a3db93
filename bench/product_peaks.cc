// Loops of products whose operands stay in registers, one for each kind of product and instruction
// set.
#include <immintrin.h>

#include <bit>
#include <vector>

#include "bench/ceilings.h"
#include "bench/timing.h"
#include "kernels/cpu/amx.h"

namespace polysketch::bench {
namespace {

constexpr int kProductPasses = 9;
constexpr int kSteps = 20000;
// Independent accumulators: more than latency times throughput of any known core needs.
constexpr int kChains = 16;
constexpr int kChains256 = 12;  // of 16 registers

enum class Product { kF32, kBf16, kInt8 };
// Both factors, in each 32-bit word: one float32, two bf16 or four bytes.
constexpr int kFactors[] = {std::bit_cast<int>(0.001f), 0x3a003a00, 0x01010101};

// In assembly, since g++ 12 keeps the accumulators of _mm512_dpbusd_epi32 in memory.
template <Product product>
__attribute__((target("avx512f"))) void Loop512() {
  using Vector __attribute__((vector_size(64))) = int;
  const Vector factors = Vector{} + kFactors[static_cast<int>(product)];
  Vector sums[kChains] = {};
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) {
      if constexpr (product == Product::kF32) {
        asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sums[j]) : "v"(factors));
      } else if constexpr (product == Product::kBf16) {
        asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[j]) : "v"(factors));
      } else {
        asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[j]) : "v"(factors));
      }
    }
  }
}

__attribute__((target("avx2,fma"))) void F32Loop256() {
  const __m256 factors = _mm256_set1_ps(0.001f);
  __m256 sums[kChains256] = {};
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains256; ++j) {
      asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[j]) : "x"(factors));
    }
  }
}

constexpr int kTileSteps = kSteps / 8;
constexpr double kTileProducts = 4.0 * kTileSteps * 16 * 16 * 16;  // products of 32-bit words

// Four accumulator tiles, two tiles of A and two of B. Loading the configuration clears them.
template <Product product>
__attribute__((target("amx-tile,amx-int8,amx-bf16"))) void TileLoop() {
  cpu::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, 16, 64);
  cpu::LoadTileConfig(config);
  for (int i = 0; i < kTileSteps; ++i) {
    if constexpr (product == Product::kInt8) {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}

// Operations a second when all threads of the pool run `loop`, which does `operations`.
double Rate(ThreadPool* pool, void (*loop)(), double operations) {
  constexpr int kLoops = 16;  // per thread
  const int64_t tasks = int64_t{kLoops} * pool->threads();
  std::vector<double> rates;
  for (int pass = 0; pass < kProductPasses; ++pass) {
    const Stopwatch watch;
    pool->ParallelFor(tasks, [&](int64_t, int) { loop(); });
    rates.push_back(static_cast<double>(tasks) * operations / watch.Seconds());
  }
  return Median(rates);
}

}  // namespace

ProductPeaks MeasureProductPeaks(ThreadPool* pool) {
  ProductPeaks peaks;
  const double f32 = 2.0 * kSteps * kChains * 16;  // operations of a 512-bit loop
  if (__builtin_cpu_supports("avx512f")) {
    peaks.f32 = Rate(pool, Loop512<Product::kF32>, f32);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    peaks.f32 = Rate(pool, F32Loop256, 2.0 * kSteps * kChains256 * 8);
  }
  if (__builtin_cpu_supports("avx512bf16")) {
    peaks.bf16 = Rate(pool, Loop512<Product::kBf16>, 2 * f32);
  }
  if (__builtin_cpu_supports("avx512vnni")) {
    peaks.int8 = Rate(pool, Loop512<Product::kInt8>, 4 * f32);
  }
  if (cpu::HasAmx()) {
    peaks.int8 = std::max(peaks.int8, Rate(pool, TileLoop<Product::kInt8>, 2 * 4 * kTileProducts));
    peaks.bf16 = std::max(peaks.bf16, Rate(pool, TileLoop<Product::kBf16>, 2 * 2 * kTileProducts));
  }
  return peaks;
}

}  // namespace polysketch::bench
