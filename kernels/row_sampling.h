// Sampling from logits on a device. For each row of logits the host's sampler (engine/sampler)
// sends a SampleQuery and receives a SampleResult in place of the row: the sampled token, or the
// few candidates among which the host samples. Only backends with device memory implement it
// (Backend::SampleRows). The arithmetic and its order are those of engine/sampler, so the token is
// the same on both.
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

// A row is processed in blocks of kRowBlock logits. The maximum and the sum of weights of a block
// let a search skip blocks.
inline constexpr size_t kRowBlock = 256;
// The sum of a block's weights consists of kRowLanes partial sums: partial sum i adds the elements
// whose index is i modulo kRowLanes. The partial sums are added in order.
inline constexpr size_t kRowLanes = 16;
static_assert(kRowBlock % kRowLanes == 0);

// e^-|x| = 2^n e^r with n integral and |r| <= ln(2) / 2. Relative error 1e-7; 0 where the result is
// below 1.7e-38 (|x| > 87). Comparisons are made on integers, since a comparison of floats may
// trap, which keeps the compiler from vectorising. Uses only sums and products, none fused, so the
// host and a GPU compute the same bits.
inline __attribute__((always_inline)) constexpr float NegativeExpInline(float x) {
  constexpr int32_t kMax = std::bit_cast<int32_t>(87.0f);
  const int32_t magnitude = std::bit_cast<int32_t>(x) & 0x7FFFFFFF;
  const float negated = std::bit_cast<float>(std::min(magnitude, kMax));
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the lowest bits.
  constexpr float kRound = 12582912.0f;
  const float rounded = negated * -1.44269504088896341f + kRound;
  const float n = rounded - kRound;
  // ln(2) in two parts; the product of n and the first part is exact.
  float r = -negated - n * 0.693359375f;
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

// Buckets of weights by size: 16 for each power of two from 2^-126 to 1, by the upper bits of the
// float32. Smaller weights are in the first bucket. top_p keeps or drops most tokens of a row by
// whole buckets.
inline constexpr int kWeightBucketShift = 19;
inline constexpr int kWeightBuckets =
    static_cast<int>(std::bit_cast<uint32_t>(1.0f) >> kWeightBucketShift) + 1;

struct SampleCandidate {
  float logit;  // after edits
  int32_t token;
};

// The plain data of a query. The weight of a token is e^((logit - max_logit) * inverse_temperature)
// with the edited logits and their maximum.
struct SampleParameters {
  enum class Kind : int32_t {
    // No query: the host reads the logits of this row.
    kNone,
    // The token with the highest logit, the lowest id among equals.
    kArgmax,
    // The first token, in order of id, at which the running sum of weights exceeds
    // `uniform` * (sum of all weights).
    kMultinomial,
    // All tokens whose weight is at least tail_share * (sum of all weights) / (row width). If there
    // are more than kMaxCandidates: only the tokens in the highest weight buckets that together
    // hold `top_p` of the sum.
    kTopPCandidates,
    // All tokens whose logit is at least max_logit + min_logit_offset and, if the row has at least
    // `top_k` blocks, at least the top_k-th highest block maximum.
    kTopKCandidates,
  };
  // Limits of one call of SampleRows: rows, candidates of a row, and edits (bias and counts) of a
  // row.
  static constexpr size_t kMaxRows = 64;
  static constexpr size_t kMaxCandidates = 1024;
  static constexpr size_t kMaxEdits = 4096;

  Kind kind = Kind::kNone;
  float inverse_temperature = 0;
  double uniform = 0;     // kMultinomial; in [0, 1)
  double top_p = 0;       // kTopPCandidates
  double tail_share = 0;  // kTopPCandidates; less than 1 - top_p
  double min_logit_offset = -std::numeric_limits<double>::infinity();  // kTopKCandidates; <= 0
  int32_t top_k = 0;                                                   // kTopKCandidates; 0: off
  // Penalties of the tokens in SampleQuery::counts: positive logits are divided by
  // `repetition_penalty` and others multiplied; then frequency_penalty * count is subtracted, and
  // presence_penalty if the count is above 0.
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
};

// What SampleRows computes from one row of logits. Logits are edited first: `bias`, then penalties.
struct SampleQuery : SampleParameters {
  std::span<const std::pair<int32_t, float>> bias;  // (token, added to its logit); tokens differ
  // (token, occurrences in the output) for every token that penalties apply to, tokens of the
  // prompt included; tokens differ.
  std::vector<std::pair<int32_t, int32_t>> counts;
};

struct SampleResult {
  enum class Kind : int32_t {
    kNone,        // the query was kNone
    kToken,       // `token` is the answer to kArgmax or kMultinomial
    kCandidates,  // `candidates` is the answer to kTopPCandidates or kTopKCandidates
    kTooMany,     // there are more than kMaxCandidates candidates: the host reads the logits
    kNotFinite,   // a logit is NaN or infinite
  };
  Kind kind = Kind::kNone;
  int32_t token = 0;
  float max_logit = 0;      // after edits
  double total_weight = 0;  // kTopPCandidates: the sum of all weights of the row
  std::span<const SampleCandidate> candidates;  // in order of id; valid until the next SampleRows
};

}  // namespace polysketch
