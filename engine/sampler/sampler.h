// Chooses the next token of one request from a row of logits.
//
// Order of operations, as in vLLM's sampler:
//   1. logit bias is added
//   2. penalties: repetition (over prompt and output: positive logits divided, others multiplied),
//   frequency (times the
//      count in the output), presence (once if in the output)
//   3. temperature 0: the highest logit, the lowest id among equals. Otherwise logits are divided
//   by the temperature
//   4. min_p: drops tokens below min_p times the highest probability
//   5. top_k: the k highest remain (the lowest ids among equals)
//   6. top_p: of these, renormalised, the fewest most likely whose probabilities reach top_p
//   7. one draw from what remains, by CounterUniform(seed, index of the token in the output)
// Log-probabilities that are reported are those of the model, before all this (logprobs.h).
//
// The result depends on the logits, the parameters, the seed and the tokens so far: on nothing that
// runs beside it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/request/params.h"
#include "kernels/row_sampling.h"

namespace polysketch {

// Working memory of Sample, shared by the requests of one thread. A weight is a probability up to a
// common factor; the highest is 1.
struct SamplerScratch {
  struct Candidate {
    float logit;
    float weight;
    int32_t token;
  };
  std::vector<float> logits;
  std::vector<float> maxima;  // of the blocks of a row (row.h)
  std::vector<float> weights;
  std::vector<float> sums;  // of the blocks of weights
  std::vector<Candidate> candidates;
  std::vector<Candidate> ranked;
  std::vector<double> masses;
};

class Sampler {
 public:
  // `params` have passed ValidateSampling.
  Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
          std::span<const int32_t> prompt);

  // The next token; counts it for the penalties. `logits` [vocab_size] are the model's. INTERNAL
  // when one is not finite.
  Result<int32_t> Sample(std::span<const float> logits, SamplerScratch* scratch);

  // The same where the logits are a device's: what it is asked for the token that is drawn behind
  // `ahead` more ones. False when only Sample will do: penalties depend on the tokens between, or a
  // device would find too many candidates or edits. The query refers to this sampler.
  bool MakeQuery(int64_t ahead, SampleQuery* query) const;
  // The token that Sample gives for the row; `answer` is not kTooMany.
  Result<int32_t> Sample(const SampleResult& answer, SamplerScratch* scratch);

  // For a sampler that goes on elsewhere: how often each id is in the output, in order of id. Empty
  // without penalties.
  std::vector<std::pair<int32_t, int32_t>> Counts() const;
  // As if `drawn` tokens had been sampled, with those counts.
  void Restore(uint64_t drawn, std::span<const std::pair<int32_t, int32_t>> counts);

 private:
  bool has_penalties() const { return !counts_.empty(); }
  // Steps 1 and 2; `logits` itself when there is nothing to do.
  std::span<const float> Adjust(std::span<const float> logits, SamplerScratch* scratch) const;
  // Steps 3 to 7 with a temperature. scratch->maxima are those of `logits`.
  int32_t Multinomial(std::span<const float> logits, SamplerScratch* scratch) const;
  float InverseTemperature() const;
  bool ranks() const { return params_.top_k > 0 || params_.min_p > 0.0f; }
  // The part of min_p: tokens whose logit is lower by this much do not pass.
  double MinPBelow() const;
  // All weights below this share of the row's sum, divided by its size, make up less than 1 - top_p
  // together.
  double MassShare() const;
  // Adds a candidate for top_k and min_p.
  void AddRanked(int32_t token, float logit, float max, float inverse_temperature,
                 SamplerScratch* scratch) const;
  // top_k and top_p of these candidates.
  void CutRanked(SamplerScratch* scratch) const;
  // What top_k, min_p and top_p leave of an answer's candidates.
  void KeepCandidates(const SampleResult& answer, SamplerScratch* scratch) const;
  // One of the candidates, by u.
  int32_t Choose(SamplerScratch* scratch) const;
  // What top_p leaves of scratch->weights becomes the candidates.
  void KeepTopP(std::span<const float> logits, SamplerScratch* scratch) const;
  // The same of min_p, top_k and top_p, without the weights of the whole row.
  void KeepHighest(std::span<const float> logits, float max, SamplerScratch* scratch) const;
  // No token with a lower logit passes min_p and top_k.
  float LowestLogit(float max, SamplerScratch* scratch) const;
  void Count(int32_t token);

  const SamplingParams params_;
  const uint64_t seed_;
  const int vocab_size_;
  uint64_t drawn_ = 0;  // tokens so far

  // Only when a penalty is on.
  std::vector<int32_t> counts_;  // in the output, by id; -1: neither in prompt nor output
  std::vector<int32_t> seen_;    // ids with a count >= 0
};

}  // namespace polysketch
