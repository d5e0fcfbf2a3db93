// Samples the next token of one sequence from a row of logits.
//
// Order of operations, as in vLLM's sampler:
//   1. logit bias is added
//   2. penalties: repetition (tokens of prompt and output: positive logits are divided, others
//      multiplied), frequency (subtracted once for each occurrence in the output), presence
//      (subtracted once for tokens of the output)
//   3. a mask drops the tokens that a grammar, or the request itself (token_rules.h), does not
//   allow
//   4. temperature 0: the highest logit, the lowest id among equals. Otherwise logits are divided
//      by the temperature
//   5. min_p: drops tokens below min_p times the highest probability
//   6. top_k: keeps the k highest (the lowest ids among equals)
//   7. top_p: of these, renormalised, keeps the smallest set of most likely tokens whose
//      probabilities reach top_p
//   8. one token is sampled from what remains, by CounterUniform(seed, index of the token in the
//      output)
// Reported log-probabilities are those of the model, before these steps (logprobs.h).
//
// The result is a function of the logits, the parameters, the seed and the tokens so far. It does
// not depend on other requests.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/request/params.h"
#include "engine/sampler/token_rules.h"
#include "kernels/row_sampling.h"

namespace polysketch {

// Working memory of Sample, reused by all samplers of one thread. A weight is a probability up to a
// common factor; the highest is 1.
struct SamplerScratch {
  struct Candidate {
    float logit;
    float weight;
    int32_t token;
  };
  std::vector<float> logits;
  std::vector<uint32_t> mask;
  std::vector<float> maxima;  // of the blocks of a row (row.h)
  std::vector<float> weights;
  std::vector<float> sums;  // of the blocks of weights
  std::vector<SampleCandidate> found;
  std::vector<Candidate> candidates;
  std::vector<Candidate> ranked;
  std::vector<double> masses;
};

class Sampler {
 public:
  // `params` have passed ValidateSampling.
  Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
          std::span<const int32_t> prompt);

  // TokenRules::SetMinimum.
  void SetMinimum(int64_t tokens, std::vector<int32_t> ids) {
    rules_.SetMinimum(tokens, std::move(ids));
  }

  // Returns the next token and counts it for the penalties. `logits` [vocab_size] are the model's.
  // INTERNAL if one of them is not finite. `mask`: bit i of its words says whether token i is
  // allowed, and at least one is; empty: all are.
  Result<int32_t> Sample(std::span<const float> logits, std::span<const uint32_t> mask,
                         SamplerScratch* scratch);

  // Makes the query for the token that follows the next `ahead` tokens, for sampling on a device.
  // Returns false if the host needs the logits: penalties depend on the tokens in between, rules
  // need a mask, or the query would exceed its limit of candidates or edits. The query refers to
  // this sampler.
  bool MakeQuery(int64_t ahead, SampleQuery* query) const;
  // Returns the token that Sample returns for the logits of the query's row, and counts it.
  // `result` is neither kNone nor kTooMany. INTERNAL if it is kNotFinite.
  Result<int32_t> Sample(const SampleResult& result, SamplerScratch* scratch);

  // Occurrences of each id in the output, in order of id; empty without penalties.
  std::vector<std::pair<int32_t, int32_t>> Counts() const;
  // The last tokens of the output, as many as rules need.
  std::span<const int32_t> Recent() const { return rules_.recent(); }
  // Continues after `sampled` tokens with these counts, the last of which are `recent`, or more.
  void Restore(uint64_t sampled, std::span<const std::pair<int32_t, int32_t>> counts,
               std::span<const int32_t> recent = {});

 private:
  bool has_penalties() const { return !counts_.empty(); }
  // Steps 1 and 2; `logits` itself without bias and penalties.
  std::span<const float> Adjust(std::span<const float> logits, SamplerScratch* scratch) const;
  // Steps 4 to 8 with a temperature. scratch->maxima are those of `logits`.
  int32_t Multinomial(std::span<const float> logits, SamplerScratch* scratch) const;
  // Steps 5 to 8 for a row of which only the candidates can remain.
  int32_t SampleCandidates(const SampleResult& result, SamplerScratch* scratch) const;
  void KeepTopK(std::vector<SamplerScratch::Candidate>* candidates) const;
  float InverseTemperature() const;
  // Whether candidates are found by their logits and not by their weights.
  bool ranks() const { return params_.top_k > 0 || params_.min_p > 0.0f; }
  // A token whose logit is below the highest logit + MinPBelow() fails min_p.
  double MinPBelow() const;
  // All tokens with a weight below MassShare() * (sum of all weights) / (row width) together have
  // less than 1 - top_p of the sum.
  double MassShare() const;
  // No token with a lower logit passes min_p and top_k.
  float LowestLogit(float max, SamplerScratch* scratch) const;
  void Count(int32_t token);
  void AddCount(int32_t token, int32_t more);

  const SamplingParams params_;
  const uint64_t seed_;
  const int vocab_size_;
  TokenRules rules_;
  uint64_t sampled_ = 0;  // tokens so far

  // Empty without penalties.
  std::vector<int32_t> counts_;  // in the output, by id; -1: neither in prompt nor output
  std::vector<int32_t> seen_;    // ids with a count >= 0
};

}  // namespace polysketch
