#include "engine/scheduler/step_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/scheduler/batch_builder.h"

namespace polysketch {
namespace {

constexpr double kDeviations = 1;
// A step over the budget lowers the aim by the share kOverTakes. A step within the budget raises it
// by kOverTakes * kMaxOver, so that in equilibrium one step in 200 is over the budget: half of what
// a p99 within the budget allows.
constexpr double kOverTakes = 0.04;
constexpr double kMaxOver = 1.0 / 200;

size_t Bucket(int64_t rows) {
  return std::min<size_t>(16, std::bit_width(static_cast<uint64_t>(rows)));
}

}  // namespace

void StepBudget::Smoothed::Add(double value) {
  if (!known) {
    known = true;
    mean = value;
    deviation = value / 4;
    return;
  }
  // At least mean / 16, so that the mean can follow a lasting change.
  const double far = kFar * std::max(deviation, mean / 16);
  value = std::clamp(value, mean - far, mean + far);
  deviation += (std::abs(value - mean) - deviation) / 8;
  mean += (value - mean) / 8;
}

double StepBudget::Smoothed::WithMargin() const {
  return std::max(mean + kDeviations * deviation, 1.0);
}

double StepBudget::DecodeTime(int64_t rows) const {
  // If the bucket has no measurement, the time of fewer rows. That time is too short, which makes
  // prompt tokens seem slower and so keeps the budget.
  for (size_t bucket = Bucket(rows) + 1; bucket-- > 0;) {
    if (decode_[bucket].known) return decode_[bucket].mean;
  }
  return 0;
}

double StepBudget::PromptTime(int64_t decode_rows, std::chrono::nanoseconds copying) const {
  if (budget_.count() == 0 || decode_rows == 0) return std::numeric_limits<double>::infinity();
  const auto budget = static_cast<double>(budget_.count());
  const double share = std::max(0.0, 1 - static_cast<double>(copying.count()) / budget);
  return share * aim_ * budget;
}

size_t StepBudget::Depth(double keys) {
  if (keys <= kFewKeys) return 0;
  return std::min(kDepths - 1, 1 + static_cast<size_t>(2 * std::log2(keys / kFewKeys)));
}

double StepBudget::Find(const TokenTimes& times, double keys) {
  const size_t depth = Depth(keys);
  double most = std::numeric_limits<double>::infinity();
  for (size_t deeper = depth; deeper < kDepths && std::isinf(most); ++deeper) {
    if (times[deeper].known) most = times[deeper].WithMargin();
  }
  if (times[depth].known) return most;
  for (size_t less = depth; less-- > 0;) {
    if (!times[less].known) continue;
    const double least_keys =
        kFewKeys * std::exp2(less == 0 ? 0 : (static_cast<double>(less) - 1) / 2);
    return std::min(most, times[less].WithMargin() * keys / least_keys);
  }
  return std::isinf(most) ? 0 : most;
}

double StepBudget::TokenTime(double keys) const {
  for (const TokenTimes* times : {&beside_, &alone_}) {
    if (const double time = Find(*times, keys); time > 0) return time;
  }
  return std::max(1.0, aim_ * static_cast<double>(budget_.count()) / kFirst);
}

double StepBudget::FoldTime() const { return fold_.known ? fold_.mean : 0; }

void StepBudget::Aim(bool over) {
  aim_ *= over ? 1 - kOverTakes : 1 + kOverTakes * kMaxOver;
  aim_ = std::clamp(aim_, kMinAim, kMaxAim);
}

void StepBudget::Measure(std::span<const Chunk> chunks, double time, TokenTimes* times) const {
  const auto expected = [&](double keys) {
    const Smoothed& known = (*times)[Depth(keys)];
    return known.known ? std::max(known.mean, 1.0) : TokenTime(keys);
  };
  double all = 0;
  for (const Chunk& chunk : chunks) all += static_cast<double>(chunk.tokens) * expected(chunk.keys);
  std::array<double, kDepths> of_depth = {};
  for (const Chunk& chunk : chunks) {
    of_depth[Depth(chunk.keys)] = expected(chunk.keys) * (time / all);
  }
  for (size_t depth = 0; depth < kDepths; ++depth) {
    if (of_depth[depth] > 0) (*times)[depth].Add(of_depth[depth]);
  }
}

void StepBudget::OnStep(int64_t decode_rows, std::span<const Chunk> chunks, int64_t folds,
                        std::chrono::nanoseconds duration) {
  const auto time = static_cast<double>(duration.count());
  if (chunks.empty()) {
    if (decode_rows > 0) decode_[Bucket(decode_rows)].Add(time);
    return;
  }
  const double prompt = std::max(0.0, time - (decode_rows > 0 ? DecodeTime(decode_rows) : 0));
  int64_t tokens = 0;
  for (const Chunk& chunk : chunks) tokens += chunk.tokens;
  // No aim makes a step of the fewest tokens shorter.
  if (decode_rows > 0 && tokens > BatchBuilder::kMinTokens) {
    Aim(prompt > static_cast<double>(budget_.count()));
  }
  if (decode_rows == 0) return Measure(chunks, prompt, &alone_);
  if (folds == 0) return Measure(chunks, prompt, &beside_);
  double rest = prompt;
  for (const Chunk& chunk : chunks) {
    const Smoothed& known = beside_[Depth(chunk.keys)];
    if (!known.known) return;
    rest -= static_cast<double>(chunk.tokens) * known.mean;
  }
  fold_.Add(std::max(0.0, rest) / static_cast<double>(folds));
}

}  // namespace polysketch
