// Drawing tokens where the logits are: what a sampler asks of a row of logits, and what comes back
// instead of the row. Only a backend whose memory is not the host's answers (Backend::SampleRows);
// the arithmetic and its order are those of engine/sampler, so that the token is the same.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace polysketch {

// Neighbouring logits that have a maximum and a sum of their own, so that a search passes over
// most of a row without looking at it.
inline constexpr size_t kRowBlock = 256;
// Partial sums of the weights of a block, by index modulo this number; added in order at its end.
inline constexpr size_t kRowLanes = 16;
static_assert(kRowBlock % kRowLanes == 0);

// e^-|x| = 2^n e^r with n whole and |r| <= ln(2) / 2, to 1e-7 of itself; 0 where it is below
// 1.7e-38 (|x| > 87). Decisions are made on integers: a comparison of floats may trap, which keeps
// the compiler from vectorising. The same bits on a GPU: only sums and products, none fused.
inline __attribute__((always_inline)) constexpr float NegativeExpInline(float x) {
  constexpr int32_t kMax = std::bit_cast<int32_t>(87.0f);
  const int32_t magnitude = std::bit_cast<int32_t>(x) & 0x7FFFFFFF;
  const float negated = std::bit_cast<float>(std::min(magnitude, kMax));
  // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits.
  constexpr float kRound = 12582912.0f;
  const float rounded = negated * -1.44269504088896341f + kRound;
  const float n = rounded - kRound;
  float r = -negated - n * 0.693359375f;  // ln(2) in two parts: this one times n is exact
  r = r + n * 2.12194440e-4f;
  // Coefficients: Cephes expf.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(rounded) << 23) + std::bit_cast<uint32_t>(1.0f);
  const auto bits = std::bit_cast<uint32_t>(p * std::bit_cast<float>(power));
  return std::bit_cast<float>(bits & (0u - static_cast<uint32_t>(magnitude <= kMax)));
}

// Weights between 2^-126 and 1 by size, 16 to an octave; the smaller ones are in the first. top_p
// keeps or drops most of a row by whole buckets.
inline constexpr int kWeightBucketShift = 19;
inline constexpr int kWeightBuckets =
    static_cast<int>(std::bit_cast<uint32_t>(1.0f) >> kWeightBucketShift) + 1;

struct SampleCandidate {
  float logit;
  int32_t token;
};

struct SampleQuery {
  // With max the highest logit, the weight of a token is e^((logit - max) * inverse_temperature).
  enum class Kind : int32_t {
    kNone,         // nothing: the host wants the logits
    kArgmax,       // the first of the highest
    kMultinomial,  // the token at which the sum of the weights, in order of id, passes u of their sum
    kTopPCandidates,  // candidates: tokens whose weight is at least mass_share * (sum of weights) / width;
    // if these are too many, those of the highest buckets that hold `mass` of the sum
    kTopKCandidates,  // candidates: tokens whose logit is at least max + below, and at least the top_k-th
                      // highest of the maxima of blocks if there are as many
  };
  // Most rows that are asked about at once; of each, most candidates that come back, and most
  // tokens that are edited.
  static constexpr size_t kMaxRows = 64;
  static constexpr size_t kMaxCandidates = 1024;
  static constexpr size_t kMaxEdits = 4096;

  Kind kind = Kind::kNone;
  float inverse_temperature = 0;
  double u = 0;
  double mass = 0, mass_share = 0;
  double below = -std::numeric_limits<double>::infinity();
  int32_t top_k = 0;  // 0: off
  // Before anything else, in this order; each id at most once in either.
  std::span<const std::pair<int32_t, float>> bias;  // added
  std::vector<std::pair<int32_t, int32_t>> counts;  // id, times in the output: penalties
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
};

struct SampleResult {
  enum class Kind : int32_t {
    kNone,   // to kNone
    kToken,  // to kArgmax and kMultinomial
    kCandidates,  // to kTopPCandidates and kTopKCandidates: all of them, in order of id, with their edits
    kTooMany,    // of them: the host must look at the logits itself
    kNotFinite,  // some logit is NaN or infinite
  };
  Kind kind = Kind::kNone;
  int32_t token = 0;
  float max = 0;
  double total = 0;                             // kTopPCandidates: the sum of the weights
  std::span<const SampleCandidate> candidates;  // valid until the next SampleRows
};

}  // namespace polysketch
