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

// The more likely first, the lower id among equals: a total order, so that partial selections do
// not depend on the library.
bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The lowest id among those of the highest logit. maxima: the maxima of the blocks of logits.
int32_t ArgMax(std::span<const float> logits, std::span<const float> maxima) {
  const auto block = std::max_element(maxima.begin(), maxima.end());
  const auto first = logits.begin() + (block - maxima.begin()) * static_cast<ptrdiff_t>(kRowBlock);
  return static_cast<int32_t>(std::find(first, logits.end(), *block) - logits.begin());
}

// Appends the tokens whose value is at least `min` to `found`, in order of id. bounds[b] is an
// upper bound of the values of block b.
void FindAtLeast(std::span<const float> values, std::span<const float> bounds, float min,
                 std::span<const float> logits, std::vector<SampleCandidate>* found) {
  for (size_t block = 0; block < bounds.size(); ++block) {
    if (bounds[block] < min) continue;
    const size_t end = std::min(values.size(), (block + 1) * kRowBlock);
    for (size_t i = block * kRowBlock; i < end; ++i) {
      if (values[i] >= min) found->push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
}

// Of the smallest set of most likely candidates whose weights and `sum` together reach `target`,
// the least likely one, by bisection; the least likely of all if they do not reach it. Reorders
// `ranked`.
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

constexpr size_t kBuckets = kWeightBuckets;
size_t BucketOf(float weight) { return std::bit_cast<uint32_t>(weight) >> kWeightBucketShift; }

// Keeps the smallest set of most likely candidates whose weights reach `target`, in their order.
void KeepMass(double target, SamplerScratch* scratch) {
  // Only the candidates of one bucket have to be ordered.
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
  if (scratch->ranked.empty()) return;  // by rounding, all candidates together miss the target
  const Candidate last = LastOfMass(target, sum, &scratch->ranked);
  std::erase_if(scratch->candidates, [&](const Candidate& c) { return Before(last, c); });
}

// The first index at which the running sum of the weights, which starts at *sum, exceeds `target`;
// if rounding keeps it below, the last index with a weight. *sum becomes the sum before that index.
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

// Samples from the weights of a row by u in [0, 1): first a block by its sum, then a token of it.
int32_t SampleFromRow(std::span<const float> weights, std::span<const float> sums, double u) {
  const double target = u * Sum(sums);
  double before = 0;
  const size_t first = Pass(sums, target, &before) * kRowBlock;
  const size_t count = std::min(kRowBlock, weights.size() - first);
  return static_cast<int32_t>(first + Pass(weights.subspan(first, count), target, &before));
}

Status NotFinite() { return Internal("the model gave a logit that is not finite"); }

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, int vocab_size,
                 std::span<const int32_t> prompt)
    : params_(params), seed_(seed), vocab_size_(vocab_size), rules_(params, vocab_size) {
  if (!params.has_penalties()) return;
  counts_.assign(static_cast<size_t>(vocab_size), -1);
  for (const int32_t token : prompt) AddCount(token, 0);
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, std::span<const uint32_t> mask,
                                SamplerScratch* scratch) {
  PS_CHECK(logits.size() == static_cast<size_t>(vocab_size_));
  const auto index = static_cast<int64_t>(sampled_);
  if (rules_.Bind(index)) mask = rules_.Mask(index, mask, &scratch->mask);
  std::span<const float> adjusted = Adjust(logits, scratch);
  // No adjustment makes Inf or NaN finite, so this checks the model's logits too.
  if (mask.empty()) {
    if (!BlockMaxima(adjusted, &scratch->maxima)) return NotFinite();
  } else {
    // The weight of a logit that is not allowed is 0: at least one is allowed, and higher.
    scratch->logits.resize(adjusted.size());
    if (!AllowedMaxima(adjusted, mask, scratch->logits.data(), &scratch->maxima)) {
      return NotFinite();
    }
    adjusted = scratch->logits;
  }
  const int32_t token = params_.temperature == 0.0f ? ArgMax(adjusted, scratch->maxima)
                                                    : Multinomial(adjusted, scratch);
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

// Finite even for a temperature near 0, so that a logit difference of 0 yields 0 and not NaN.
float Sampler::InverseTemperature() const {
  return std::min(1.0f / params_.temperature, std::numeric_limits<float>::max());
}

double Sampler::MinPBelow() const {
  if (params_.min_p <= 0) return -std::numeric_limits<double>::infinity();
  // 1e-3 covers the rounding of weights.
  return (std::log(static_cast<double>(params_.min_p)) - 1e-3) / InverseTemperature();
}

// 0.99 covers rounding. A few hundred tokens of a large vocabulary have at least this share.
double Sampler::MassShare() const { return 0.99 * (1 - static_cast<double>(params_.top_p)); }

float Sampler::LowestLogit(float max, SamplerScratch* scratch) const {
  float lowest =
      std::max(std::numeric_limits<float>::lowest(), static_cast<float>(max + MinPBelow()));
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

int32_t Sampler::Multinomial(std::span<const float> logits, SamplerScratch* scratch) const {
  SampleResult result;
  result.max_logit = *std::max_element(scratch->maxima.begin(), scratch->maxima.end());
  std::vector<SampleCandidate>& found = scratch->found;
  found.clear();
  if (ranks()) {
    FindAtLeast(logits, scratch->maxima, LowestLogit(result.max_logit, scratch), logits, &found);
  } else {
    Weigh(logits, result.max_logit, InverseTemperature(), &scratch->weights, &scratch->sums);
    if (params_.top_p >= 1.0f) {
      return SampleFromRow(scratch->weights, scratch->sums, CounterUniform(seed_, sampled_));
    }
    result.total_weight = Sum(scratch->sums);
    const auto min = static_cast<float>(MassShare() * result.total_weight / vocab_size_);
    FindAtLeast(scratch->weights, scratch->sums, min, logits, &found);
  }
  result.candidates = found;
  return SampleCandidates(result, scratch);
}

int32_t Sampler::SampleCandidates(const SampleResult& result, SamplerScratch* scratch) const {
  const float inverse = InverseTemperature();
  std::vector<Candidate>& candidates = scratch->candidates;
  candidates.clear();
  for (const auto& [logit, token] : result.candidates) {
    const float weight = NegativeExp((logit - result.max_logit) * inverse);
    if (!ranks() || weight >= params_.min_p) candidates.push_back({logit, weight, token});
  }
  double total = result.total_weight;
  if (ranks()) {
    KeepTopK(&candidates);
    total = 0;
    for (const Candidate& c : candidates) total += c.weight;
  }
  if (params_.top_p < 1.0f) KeepMass(static_cast<double>(params_.top_p) * total, scratch);

  std::vector<float>& weights = scratch->weights;
  weights.clear();
  for (const Candidate& c : candidates) weights.push_back(c.weight);
  double before = 0;
  const double target = CounterUniform(seed_, sampled_) * Sum(weights);
  return candidates[Pass(weights, target, &before)].token;
}

void Sampler::KeepTopK(std::vector<Candidate>* candidates) const {
  if (params_.top_k == 0 || params_.top_k >= std::ssize(*candidates)) return;
  const auto kth = candidates->begin() + params_.top_k;
  std::nth_element(candidates->begin(), kth, candidates->end(), Before);
  candidates->erase(kth, candidates->end());
  // In a fixed order, which nth_element does not define, because sums depend on it.
  std::sort(candidates->begin(), candidates->end(), Before);
}

bool Sampler::MakeQuery(int64_t ahead, SampleQuery* query) const {
  if (rules_.Bind(static_cast<int64_t>(sampled_) + ahead)) return false;
  if (ahead > 0 && has_penalties()) return false;
  if (params_.logit_bias.size() + seen_.size() > SampleQuery::kMaxEdits) return false;
  using Kind = SampleQuery::Kind;
  query->kind = params_.temperature == 0.0f ? Kind::kArgmax
                : ranks()                   ? Kind::kTopKCandidates
                : params_.top_p < 1.0f      ? Kind::kTopPCandidates
                                            : Kind::kMultinomial;
  const size_t blocks = (static_cast<size_t>(vocab_size_) + kRowBlock - 1) / kRowBlock;
  const bool bounded = params_.min_p > 0 || static_cast<size_t>(params_.top_k) <= blocks ||
                       static_cast<size_t>(vocab_size_) <= SampleQuery::kMaxCandidates;
  if (query->kind == Kind::kTopKCandidates && !bounded) return false;
  query->inverse_temperature = InverseTemperature();
  query->uniform = CounterUniform(seed_, sampled_ + static_cast<uint64_t>(ahead));
  query->top_p = static_cast<double>(params_.top_p);
  query->tail_share = MassShare();
  query->min_logit_offset = MinPBelow();
  query->top_k = params_.top_k;
  query->bias = params_.logit_bias;
  query->counts.clear();
  for (const int32_t token : seen_) {
    query->counts.emplace_back(token, counts_[static_cast<size_t>(token)]);
  }
  query->repetition_penalty = params_.repetition_penalty;
  query->frequency_penalty = params_.frequency_penalty;
  query->presence_penalty = params_.presence_penalty;
  return true;
}

Result<int32_t> Sampler::Sample(const SampleResult& result, SamplerScratch* scratch) {
  if (result.kind == SampleResult::Kind::kNotFinite) return NotFinite();
  int32_t token = result.token;
  if (result.kind != SampleResult::Kind::kToken) {
    PS_CHECK(result.kind == SampleResult::Kind::kCandidates);
    token = SampleCandidates(result, scratch);
  }
  Count(token);
  return token;
}

std::vector<std::pair<int32_t, int32_t>> Sampler::Counts() const {
  std::vector<std::pair<int32_t, int32_t>> counts;
  for (size_t id = 0; id < counts_.size(); ++id) {
    if (counts_[id] > 0) counts.emplace_back(static_cast<int32_t>(id), counts_[id]);
  }
  return counts;
}

void Sampler::Restore(uint64_t sampled, std::span<const std::pair<int32_t, int32_t>> counts,
                      std::span<const int32_t> recent) {
  sampled_ = sampled;
  for (const int32_t token : recent) rules_.Accept(token);
  if (!has_penalties()) return;
  for (const auto& [token, count] : counts) AddCount(token, count);
}

void Sampler::Count(int32_t token) {
  ++sampled_;
  rules_.Accept(token);
  if (has_penalties()) AddCount(token, 1);
}

void Sampler::AddCount(int32_t token, int32_t more) {
  int32_t& count = counts_[static_cast<size_t>(token)];
  if (count < 0) {
    count = 0;
    seen_.push_back(token);
  }
  count += more;
}

}  // namespace polysketch
