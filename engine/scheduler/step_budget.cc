#include "engine/scheduler/step_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

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

double StepBudget::DecodeTime(int64_t rows) const {
  // If the bucket has no measurement, the time of fewer rows. That time is too short, which makes
  // prompt tokens seem slower and so keeps the budget.
  for (size_t bucket = Bucket(rows) + 1; bucket-- > 0;) {
    if (decode_[bucket].known) return decode_[bucket].mean;
  }
  return 0;
}

int64_t StepBudget::PromptTokens(int64_t decode_rows, std::chrono::nanoseconds copying) const {
  if (budget_.count() == 0 || decode_rows == 0) return std::numeric_limits<int64_t>::max();
  const auto budget = static_cast<double>(budget_.count());
  const double share = std::max(0.0, 1 - static_cast<double>(copying.count()) / budget);
  double tokens = kFirst;
  if (const Smoothed& cost = beside_.known ? beside_ : alone_; cost.known) {
    const double each = cost.mean + kDeviations * cost.deviation;
    tokens = aim_ * budget / std::max(each, 1.0);
  }
  return std::max(kMin, static_cast<int64_t>(share * std::min(tokens, 1e9)));
}

void StepBudget::Aim(bool over) {
  aim_ *= over ? 1 - kOverTakes : 1 + kOverTakes * kMaxOver;
  aim_ = std::clamp(aim_, kMinAim, kMaxAim);
}

int64_t StepBudget::FoldTokens() const {
  if (!fold_.known || !beside_.known) return 0;
  return static_cast<int64_t>(fold_.mean / std::max(beside_.mean, 1.0));
}

void StepBudget::OnStep(int64_t decode_rows, int64_t prompt_tokens, int64_t folds,
                        std::chrono::nanoseconds duration) {
  const auto time = static_cast<double>(duration.count());
  if (prompt_tokens == 0) {
    if (decode_rows > 0) decode_[Bucket(decode_rows)].Add(time);
  } else {
    const double prompt = std::max(0.0, time - (decode_rows > 0 ? DecodeTime(decode_rows) : 0));
    if (decode_rows > 0) Aim(prompt > static_cast<double>(budget_.count()));
    const auto tokens = static_cast<double>(prompt_tokens);
    if (decode_rows == 0) {
      alone_.Add(prompt / tokens);
    } else if (folds == 0) {
      beside_.Add(prompt / tokens);
    } else if (beside_.known) {
      fold_.Add(std::max(0.0, prompt - tokens * beside_.mean) / static_cast<double>(folds));
    }
  }
}

}  // namespace polysketch
