#include "engine/sampler/row.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/check.h"

// Marks the variant of a function for machines with AVX2, which is twice as fast. It is compiled
// from the same source without contraction into fused operations, so it computes the same bits.
#if defined(__x86_64__)
#define PS_FOR_AVX2 __attribute__((target("avx2")))
#else
#define PS_FOR_AVX2
#endif
#define PS_ALWAYS_INLINE inline __attribute__((always_inline))

namespace polysketch {
namespace {

constexpr size_t kLanes = kRowLanes;

bool HasAvx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
#else
  return false;
#endif
}

// The magnitudes of Inf and NaN, as integers, are at least this, those of all finite numbers below.
constexpr int32_t kNotFinite = 0x7F800000;

PS_ALWAYS_INLINE int32_t Magnitude(float x) { return std::bit_cast<int32_t>(x) & 0x7FFFFFFF; }

PS_ALWAYS_INLINE void WeighBlock(const float* logits, size_t count, float max, float scale,
                                 float* weights, float* sum) {
  for (size_t i = 0; i < count; ++i) weights[i] = NegativeExpInline((logits[i] - max) * scale);
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += weights[i];
  *sum = 0;
  for (const float lane : lanes) *sum += lane;
}

PS_ALWAYS_INLINE void WeighRow(std::span<const float> logits, float max, float scale,
                               float* weights, float* sums) {
  for (size_t first = 0; first < logits.size(); first += kRowBlock) {
    const size_t count = std::min(kRowBlock, logits.size() - first);
    WeighBlock(logits.data() + first, count, max, scale, weights + first, sums++);
  }
}

PS_FOR_AVX2 void WeighRowAvx2(std::span<const float> logits, float max, float scale, float* weights,
                              float* sums) {
  WeighRow(logits, max, scale, weights, sums);
}

// Maps the bits of a float to an integer of the same order: inverts the other bits of negative
// floats. The function is its own inverse.
PS_ALWAYS_INLINE int32_t Ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

// The largest value and the largest magnitude of each lane so far.
struct Largest {
  int32_t value[kLanes];
  int32_t magnitude[kLanes] = {};

  PS_ALWAYS_INLINE void Take(size_t lane, float x) {
    value[lane] = std::max(value[lane], Ordered(std::bit_cast<int32_t>(x)));
    magnitude[lane] = std::max(magnitude[lane], Magnitude(x));
  }
};

PS_ALWAYS_INLINE bool RowMaxima(std::span<const float> logits, float* maxima) {
  Largest largest;
  for (size_t first = 0; first < logits.size(); first += kRowBlock) {
    const float* block = logits.data() + first;
    const size_t count = std::min(kRowBlock, logits.size() - first);
    std::fill_n(largest.value, kLanes, std::numeric_limits<int32_t>::min());
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) largest.Take(lane, block[i + lane]);
    }
    for (size_t lane = 0; i < count; ++i, ++lane) largest.Take(lane, block[i]);
    const int32_t top = *std::max_element(largest.value, largest.value + kLanes);
    *maxima++ = std::bit_cast<float>(Ordered(top));
  }
  return *std::max_element(largest.magnitude, largest.magnitude + kLanes) < kNotFinite;
}

PS_FOR_AVX2 bool RowMaximaAvx2(std::span<const float> logits, float* maxima) {
  return RowMaxima(logits, maxima);
}

// A vector of AVX2; the compiler makes two of it for other machines.
using Ints = int32_t __attribute__((vector_size(32)));
constexpr size_t kInts = 8;
constexpr Ints kBits = {1, 2, 4, 8, 16, 32, 64, 128};

// Returns whether all logits are finite.
PS_ALWAYS_INLINE bool SelectRow(std::span<const float> logits, const uint32_t* mask, float* out) {
  constexpr auto kLowest = std::bit_cast<int32_t>(std::numeric_limits<float>::lowest());
  Ints largest = {};
  size_t i = 0;
  for (; i + kInts <= logits.size(); i += kInts) {
    Ints x;
    __builtin_memcpy(&x, logits.data() + i, sizeof(x));
    const Ints magnitude = x & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
    // The bits of as many logits are in one word.
    const auto word = static_cast<int32_t>(mask[i / 32] >> (i % 32));
    const Ints allowed = (kBits & word) == kBits;
    x = (x & allowed) | (kLowest & ~allowed);
    __builtin_memcpy(out + i, &x, sizeof(x));
  }
  int32_t most = 0;
  for (size_t lane = 0; lane < kInts; ++lane) most = std::max(most, largest[lane]);
  for (; i < logits.size(); ++i) {
    most = std::max(most, Magnitude(logits[i]));
    const bool allowed = (mask[i / 32] >> (i % 32) & 1) != 0;
    out[i] = allowed ? logits[i] : std::numeric_limits<float>::lowest();
  }
  return most < kNotFinite;
}

PS_FOR_AVX2 bool SelectRowAvx2(std::span<const float> logits, const uint32_t* mask, float* out) {
  return SelectRow(logits, mask, out);
}

}  // namespace

bool BlockMaxima(std::span<const float> logits, std::vector<float>* maxima) {
  maxima->resize((logits.size() + kRowBlock - 1) / kRowBlock);
  if (HasAvx2()) return RowMaximaAvx2(logits, maxima->data());
  return RowMaxima(logits, maxima->data());
}

bool AllowedMaxima(std::span<const float> logits, std::span<const uint32_t> mask, float* out,
                   std::vector<float>* maxima) {
  PS_CHECK(mask.size() * 32 >= logits.size());
  const bool finite =
      HasAvx2() ? SelectRowAvx2(logits, mask.data(), out) : SelectRow(logits, mask.data(), out);
  BlockMaxima({out, logits.size()}, maxima);
  return finite;
}

float NegativeExp(float x) { return NegativeExpInline(x); }

void Weigh(std::span<const float> logits, float max, float scale, std::vector<float>* weights,
           std::vector<float>* sums) {
  weights->resize(logits.size());
  sums->resize((logits.size() + kRowBlock - 1) / kRowBlock);
  if (HasAvx2()) return WeighRowAvx2(logits, max, scale, weights->data(), sums->data());
  WeighRow(logits, max, scale, weights->data(), sums->data());
}

}  // namespace polysketch
