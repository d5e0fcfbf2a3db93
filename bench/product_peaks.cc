// Register-resident product loops, one for each kind of product and instruction set.
#include <immintrin.h>

#include <vector>

#include "bench/ceilings.h"
#include "bench/timing.h"
#include "kernels/cpu/amx.h"

namespace polysketch::bench {
namespace {

constexpr int kPasses = 9;
constexpr int kSteps = 20000;
// Independent accumulators: more than latency times width of any known core.
constexpr int kChains = 16;
constexpr int kChains256 = 12;

volatile float g_sink;  // keeps the loops from being optimised away

__attribute__((target("avx2,fma"))) void F32Loop256() {
  __m256 acc[kChains256];
#pragma GCC unroll 12
  for (int j = 0; j < kChains256; ++j) acc[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains256; ++j) acc[j] = _mm256_fmadd_ps(acc[j], a, b);
  }
#pragma GCC unroll 12
  for (int j = 1; j < kChains256; ++j) acc[0] = _mm256_add_ps(acc[0], acc[j]);
  g_sink = _mm256_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f"))) void F32Loop512() {
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_fmadd_ps(acc[j], a, b);
  }
#pragma GCC unroll 16
  for (int j = 1; j < kChains; ++j) acc[0] = _mm512_add_ps(acc[0], acc[j]);
  g_sink = _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f,avx512bf16"))) void Bf16Loop() {
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3a003a00), b = a;
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_dpbf16_ps(acc[j], a, b);
  }
#pragma GCC unroll 16
  for (int j = 1; j < kChains; ++j) acc[0] = _mm512_add_ps(acc[0], acc[j]);
  g_sink = _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f,avx512vnni"))) void Int8Loop() {
  __m512i acc[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_set1_epi32(j);
  const __m512i a = _mm512_set1_epi8(1), b = a;
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) {
      // Not the intrinsic: g++ 12 keeps the accumulators in memory around it.
      asm("vpdpbusd %2, %1, %0" : "+v"(acc[j]) : "v"(a), "v"(b));
    }
  }
#pragma GCC unroll 16
  for (int j = 1; j < kChains; ++j) acc[0] = _mm512_add_epi32(acc[0], acc[j]);
  g_sink = static_cast<float>(_mm512_cvtsi512_si32(acc[0]));
}

// Four accumulator tiles, two of A and two of B, all full and all zero.
constexpr int kTileSteps = kSteps / 8;
constexpr double kTileProducts = 4.0 * kTileSteps * 16 * 16 * 16;  // of 32-bit words

__attribute__((target("amx-tile"))) void FillTiles() {
  cpu::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, 16, 64);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

__attribute__((target("amx-tile,amx-int8"))) void Int8TileLoop() {
  FillTiles();
  for (int i = 0; i < kTileSteps; ++i) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
}

__attribute__((target("amx-tile,amx-bf16"))) void Bf16TileLoop() {
  FillTiles();
  for (int i = 0; i < kTileSteps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

// Operations a second when every thread of the pool runs `loop`, which does `operations`.
double Rate(ThreadPool* pool, void (*loop)(), double operations) {
  constexpr int kLoops = 16;  // tasks for each thread
  const int64_t tasks = int64_t{kLoops} * pool->threads();
  std::vector<double> rates;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Stopwatch watch;
    pool->ParallelFor(tasks, [&](int64_t, int) { loop(); });
    rates.push_back(static_cast<double>(tasks) * operations / watch.Seconds());
  }
  return Median(rates);
}

}  // namespace

ProductPeaks MeasureProductPeaks(ThreadPool* pool) {
  ProductPeaks peaks;
  const double vectors = 2.0 * kSteps * kChains * 16;  // f32 FMAs of a 512-bit loop
  if (__builtin_cpu_supports("avx512f")) {
    peaks.f32 = Rate(pool, F32Loop512, vectors);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    peaks.f32 = Rate(pool, F32Loop256, 2.0 * kSteps * kChains256 * 8);
  }
  if (__builtin_cpu_supports("avx512bf16")) peaks.bf16 = Rate(pool, Bf16Loop, 2 * vectors);
  if (__builtin_cpu_supports("avx512vnni")) peaks.int8 = Rate(pool, Int8Loop, 4 * vectors);
  if (cpu::HasAmx()) {
    peaks.int8 = std::max(peaks.int8, Rate(pool, Int8TileLoop, 2 * 4 * kTileProducts));
    peaks.bf16 = std::max(peaks.bf16, Rate(pool, Bf16TileLoop, 2 * 2 * kTileProducts));
  }
  return peaks;
}

}  // namespace polysketch::bench
