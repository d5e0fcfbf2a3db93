#include "engine/sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/sampler/random.h"

namespace polysketch {
namespace {

using Candidate = SamplerScratch::Candidate;

// Most likely first, the lowest id among equals: a total order, so that partial selections do not
// depend on the library.
bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

bool AllFinite(std::span<const float> values) {
  // The largest magnitude as an integer: Inf and NaN lie above every finite number. One branch-free
  // loop.
  int32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<int32_t>(value) & 0x7FFFFFFF);
  }
  return largest < 0x7F800000;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Cuts `candidates` to the fewest most likely whose weights reach `target`. Sorts only as many as
// needed.
void CutToMass(double target, std::vector<Candidate>* candidates) {
  double sum = 0;
  size_t sorted = 0;
  for (size_t step = 64; sorted < candidates->size(); step *= 4) {
    const size_t next = std::min(candidates->size(), sorted + step);
    const auto begin = candidates->begin() + static_cast<ptrdiff_t>(sorted);
    const auto middle = candidates->begin() + static_cast<ptrdiff_t>(next);
    if (middle != candidates->end()) std::nth_element(begin, middle, candidates->end(), Before);
    std::sort(begin, middle, Before);
    for (; sorted < next; ++sorted) {
      sum += (*candidates)[sorted].weight;
      if (sum >= target) {
        candidates->resize(sorted + 1);
        return;
      }
    }
  }
}

// The first index at which the running sum of weights passes u times their total.
size_t DrawIndex(std::span<const float> weights, double u) {
  double total = 0;
  for (const float weight : weights) total += weight;
  const double target = u * total;
  double sum = 0;
  size_t last = 0;  // with a weight: rounding may leave the target at the very end
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    sum += weights[i];
    last = i;
    if (sum > target) break;
  }
  return last;
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
                 std::span<const int32_t> prompt)
    : params_(params), seed_(seed), vocab_size_(vocab_size) {
  if (params.repetition_penalty == 1.0f && params.frequency_penalty == 0.0f &&
      params.presence_penalty == 0.0f) {
    return;
  }
  counts_.assign(static_cast<size_t>(vocab_size), -1);
  for (const int32_t token : prompt) {
    int32_t& count = counts_[static_cast<size_t>(token)];
    if (count < 0) {
      count = 0;
      seen_.push_back(token);
    }
  }
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, SamplerScratch* scratch) {
  PS_CHECK(logits.size() == static_cast<size_t>(vocab_size_));
  const std::span<const float> adjusted = Adjust(logits, scratch);
  // No adjustment makes Inf or NaN finite, so this covers the model's logits too.
  if (!AllFinite(adjusted)) return Internal("the model gave a logit that is not finite");
  const int32_t token = params_.temperature == 0.0f ? ArgMax(adjusted) : Draw(adjusted, scratch);
  Count(token);
  return token;
}

std::span<const float> Sampler::Adjust(std::span<const float> logits,
                                       SamplerScratch* scratch) const {
  if (params_.logit_bias.empty() && !has_penalties()) return logits;
  std::vector<float>& out = scratch->logits;
  out.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : params_.logit_bias) out[static_cast<size_t>(token)] += bias;
  for (const int32_t token : seen_) {
    float& logit = out[static_cast<size_t>(token)];
    const int32_t count = counts_[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    logit -= params_.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= params_.presence_penalty;
  }
  return out;
}

int32_t Sampler::Draw(std::span<const float> logits, SamplerScratch* scratch) const {
  const double u = CounterUniform(seed_, drawn_);
  const bool top_k = params_.top_k > 0 && params_.top_k < vocab_size_;
  const bool top_p = params_.top_p < 1.0f;

  // Probabilities up to a factor; the highest is 1, so min_p is a bound on weights. The inverse of
  // a temperature near 0 stays finite, so that 0 * inverse is 0 and not NaN.
  const float max = *std::max_element(logits.begin(), logits.end());
  const float inverse_temperature =
      std::min(1.0f / params_.temperature, std::numeric_limits<float>::max());
  std::vector<float>& weights = scratch->weights;
  weights.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((logits[i] - max) * inverse_temperature);
  }
  if (!top_k && !top_p && params_.min_p <= 0.0f) {
    return static_cast<int32_t>(DrawIndex(weights, u));
  }

  double total = 0;
  for (const float weight : weights) total += weight >= params_.min_p ? weight : 0.0f;
  double floor = params_.min_p;
  if (top_p && !top_k) {
    // All weights below this make up less than 1 - top_p together, so top_p keeps none of them;
    // 0.99 covers rounding. What passes is a few hundred of a large vocabulary.
    floor = std::max(floor, 0.99 * (1 - static_cast<double>(params_.top_p)) * total / vocab_size_);
  }
  std::vector<Candidate>& candidates = scratch->candidates;
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights[i] >= floor) candidates.push_back({logits[i], weights[i], static_cast<int32_t>(i)});
  }
  if (top_k) {
    const auto kth =
        candidates.begin() + std::min<ptrdiff_t>(params_.top_k, std::ssize(candidates));
    std::nth_element(candidates.begin(), kth, candidates.end(), Before);
    candidates.erase(kth, candidates.end());
    // A fixed order, whatever nth_element left, because sums depend on it.
    std::sort(candidates.begin(), candidates.end(), Before);
    total = 0;
    for (const Candidate& c : candidates) total += c.weight;
  }
  if (top_p) CutToMass(static_cast<double>(params_.top_p) * total, &candidates);
  weights.clear();
  for (const Candidate& c : candidates) weights.push_back(c.weight);
  return candidates[DrawIndex(weights, u)].token;
}

std::vector<std::pair<int32_t, int32_t>> Sampler::Counts() const {
  std::vector<std::pair<int32_t, int32_t>> counts;
  for (size_t id = 0; id < counts_.size(); ++id) {
    if (counts_[id] > 0) counts.emplace_back(static_cast<int32_t>(id), counts_[id]);
  }
  return counts;
}

void Sampler::Restore(uint64_t drawn, std::span<const std::pair<int32_t, int32_t>> counts) {
  drawn_ = drawn;
  if (!has_penalties()) return;
  for (const auto& [token, count] : counts) {
    int32_t& known = counts_[static_cast<size_t>(token)];
    if (known < 0) seen_.push_back(token);
    known = count;
  }
}

void Sampler::Count(int32_t token) {
  ++drawn_;
  if (!has_penalties()) return;
  int32_t& count = counts_[static_cast<size_t>(token)];
  if (count < 0) {
    count = 0;
    seen_.push_back(token);
  }
  ++count;
}

}  // namespace polysketch
