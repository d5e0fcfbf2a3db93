#include "engine/sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"
#include "engine/sampler/random.h"
#include "engine/sampler/row.h"

namespace polysketch {
namespace {

using Candidate = SamplerScratch::Candidate;

// Most likely first, the lowest id among equals: a total order, so that partial selections do not
// depend on the library.
bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The first of the highest.
int32_t ArgMax(std::span<const float> logits, std::span<const float> maxima) {
  const auto block = std::max_element(maxima.begin(), maxima.end());
  const auto first = logits.begin() + (block - maxima.begin()) * static_cast<ptrdiff_t>(kRowBlock);
  return static_cast<int32_t>(std::find(first, logits.end(), *block) - logits.begin());
}

// Calls visit(token) in order of id for the tokens whose value is at least `least`. No value of a
// block is above that of `bounds`.
template <typename Visit>
void ForEachAtLeast(std::span<const float> values, std::span<const float> bounds, float least,
                    const Visit& visit) {
  for (size_t block = 0; block < bounds.size(); ++block) {
    if (bounds[block] < least) continue;
    const size_t end = std::min(values.size(), (block + 1) * kRowBlock);
    for (size_t i = block * kRowBlock; i < end; ++i) {
      if (values[i] >= least) visit(i);
    }
  }
}

// The last of the fewest most likely whose weights and `sum` together reach `target`, by halving;
// the least likely when all do not. Reorders `ranked`.
Candidate LastOfMass(double target, double sum, std::vector<Candidate>* ranked) {
  auto first = ranked->begin();
  auto last = ranked->end();
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, Before);
    double upper = sum;
    for (auto at = first; at != middle; ++at) upper += at->weight;
    if (upper >= target) {
      last = middle;
    } else {
      sum = upper;
      first = middle;
    }
  }
  return *first;
}

// Weights between 2^-126 and 1 by size, 16 to an octave; the smaller ones are in the first.
constexpr int kBucketShift = 19;
constexpr size_t kBuckets = (std::bit_cast<uint32_t>(1.0f) >> kBucketShift) + 1;
size_t BucketOf(float weight) { return std::bit_cast<uint32_t>(weight) >> kBucketShift; }

// Cuts the candidates to the fewest most likely whose weights reach `target`; they stay in order.
void CutToMass(double target, SamplerScratch* scratch) {
  // Most are kept, or not, with their whole bucket.
  std::vector<double>& masses = scratch->masses;
  masses.assign(kBuckets, 0);
  for (const Candidate& c : scratch->candidates) masses[BucketOf(c.weight)] += c.weight;
  double sum = 0;
  size_t bucket = kBuckets - 1;
  while (bucket > 0 && sum + masses[bucket] < target) sum += masses[bucket--];
  scratch->ranked.clear();
  for (const Candidate& c : scratch->candidates) {
    if (BucketOf(c.weight) == bucket) scratch->ranked.push_back(c);
  }
  if (scratch->ranked.empty()) return;  // rounding: all of them do not reach it
  const Candidate last = LastOfMass(target, sum, &scratch->ranked);
  std::erase_if(scratch->candidates, [&](const Candidate& c) { return Before(last, c); });
}

// The first index at which a sum that begins with *sum and runs over the weights passes `target`;
// the last with a weight when rounding lets it pass nowhere. *sum becomes the sum in front of it.
size_t Pass(std::span<const float> weights, double target, double* sum) {
  double before = *sum;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    *sum = before;
    last = i;
    before += weights[i];
    if (before > target) break;
  }
  return last;
}

double Sum(std::span<const float> weights) {
  double sum = 0;
  for (const float weight : weights) sum += weight;
  return sum;
}

// The same over a row: through the sums of its blocks, then through one block.
int32_t DrawFromRow(std::span<const float> weights, std::span<const float> sums, double u) {
  const double target = u * Sum(sums);
  double before = 0;
  const size_t first = Pass(sums, target, &before) * kRowBlock;
  const size_t count = std::min(kRowBlock, weights.size() - first);
  return static_cast<int32_t>(first + Pass(weights.subspan(first, count), target, &before));
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
  if (!BlockMaxima(adjusted, &scratch->maxima)) {
    return Internal("the model gave a logit that is not finite");
  }
  const int32_t token =
      params_.temperature == 0.0f ? ArgMax(adjusted, scratch->maxima) : Draw(adjusted, scratch);
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

float Sampler::LowestLogit(float max, float inverse_temperature, SamplerScratch* scratch) const {
  float lowest = std::numeric_limits<float>::lowest();
  if (params_.min_p > 0) {
    // A thousandth covers the rounding of weights.
    const double exponent = std::log(static_cast<double>(params_.min_p)) - 1e-3;
    lowest = std::max(lowest, static_cast<float>(max + exponent / inverse_temperature));
  }
  const auto k = static_cast<size_t>(params_.top_k);
  if (k > 0 && k <= scratch->maxima.size()) {
    // The k highest maxima are k logits.
    std::vector<float>& maxima = scratch->sums;
    maxima = scratch->maxima;
    const auto kth = maxima.begin() + static_cast<ptrdiff_t>(k - 1);
    std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
    lowest = std::max(lowest, *kth);
  }
  return lowest;
}

void Sampler::KeepTopP(std::span<const float> logits, SamplerScratch* scratch) const {
  const double total = Sum(scratch->sums);
  // All weights below this make up less than 1 - top_p together, so top_p keeps none of them; 0.99
  // covers rounding. What passes is a few hundred of a large vocabulary.
  const double least = 0.99 * (1 - static_cast<double>(params_.top_p)) * total / vocab_size_;
  ForEachAtLeast(scratch->weights, scratch->sums, static_cast<float>(least), [&](size_t i) {
    scratch->candidates.push_back({logits[i], scratch->weights[i], static_cast<int32_t>(i)});
  });
  CutToMass(static_cast<double>(params_.top_p) * total, scratch);
}

void Sampler::KeepHighest(std::span<const float> logits, float max, float inverse_temperature,
                          SamplerScratch* scratch) const {
  std::vector<Candidate>& candidates = scratch->candidates;
  const float lowest = LowestLogit(max, inverse_temperature, scratch);
  ForEachAtLeast(logits, scratch->maxima, lowest, [&](size_t i) {
    const float weight = NegativeExp((logits[i] - max) * inverse_temperature);
    if (weight >= params_.min_p) candidates.push_back({logits[i], weight, static_cast<int32_t>(i)});
  });
  if (params_.top_k > 0 && params_.top_k < std::ssize(candidates)) {
    const auto kth = candidates.begin() + params_.top_k;
    std::nth_element(candidates.begin(), kth, candidates.end(), Before);
    candidates.erase(kth, candidates.end());
    // A fixed order, whatever nth_element left, because sums depend on it.
    std::sort(candidates.begin(), candidates.end(), Before);
  }
  if (params_.top_p >= 1.0f) return;
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  CutToMass(static_cast<double>(params_.top_p) * total, scratch);
}

int32_t Sampler::Draw(std::span<const float> logits, SamplerScratch* scratch) const {
  const double u = CounterUniform(seed_, drawn_);
  const float max = *std::max_element(scratch->maxima.begin(), scratch->maxima.end());
  // That of a temperature near 0 stays finite, so that 0 * inverse is 0 and not NaN.
  const float inverse_temperature =
      std::min(1.0f / params_.temperature, std::numeric_limits<float>::max());
  std::vector<float>& weights = scratch->weights;
  scratch->candidates.clear();
  if (params_.top_k > 0 || params_.min_p > 0.0f) {
    KeepHighest(logits, max, inverse_temperature, scratch);
  } else {
    Weigh(logits, max, inverse_temperature, &weights, &scratch->sums);
    if (params_.top_p >= 1.0f) return DrawFromRow(weights, scratch->sums, u);
    KeepTopP(logits, scratch);
  }
  weights.clear();
  for (const Candidate& c : scratch->candidates) weights.push_back(c.weight);
  double before = 0;
  return scratch->candidates[Pass(weights, u * Sum(weights), &before)].token;
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
