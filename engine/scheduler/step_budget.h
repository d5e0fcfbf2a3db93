// Limits the prompt tokens of a step with decoding sequences, so that they add at most a given time
// to the step. The times of a token and of a fold are measured step by step and smoothed. The share
// of the budget that a step aims at follows from the number of steps that exceeded the budget. The
// limit decides how prompts are split, which does not change results.
//
// Used by the engine thread only.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace polysketch {

class StepBudget {
 public:
  // `budget` 0: no limit.
  explicit StepBudget(std::chrono::nanoseconds budget) : budget_(budget) {}

  // Maximum prompt tokens of a step with `decode_rows` decoding rows, before which copies of states have
  // taken `copying` of the budget; at least kMin, so that prompts progress.
  int64_t PromptTokens(int64_t decode_rows,
                       std::chrono::nanoseconds copying = std::chrono::nanoseconds(0)) const;
  // The time of a fold, in prompt tokens.
  int64_t FoldTokens() const;
  // Measures a step. `folds`: number of prompt chunks that began with a fold.
  void OnStep(int64_t decode_rows, int64_t prompt_tokens, int64_t folds,
              std::chrono::nanoseconds duration);

  static constexpr int64_t kMin = 4;
  // The limit before any step was measured.
  static constexpr int64_t kFirst = 16;
  // Share of the budget that a step aims at. The rest is for what a mean does not predict, above
  // all other processes on the same processors.
  static constexpr double kFirstAim = 0.65;
  static constexpr double kMinAim = 0.5;
  static constexpr double kMaxAim = 0.9;

 private:
  // An exponentially weighted mean and mean deviation, as TCP smooths round-trip times (RFC 6298).
  // A measurement farther than kFar deviations from the mean counts as one at kFar deviations: many
  // of them move the mean, one delayed step does not.
  struct Smoothed {
    double mean = 0;
    double deviation = 0;
    bool known = false;
    static constexpr double kFar = 4;
    void Add(double value);
  };

  // Nanoseconds of a step of `rows` decoding rows without prompts; 0 while unknown.
  double DecodeTime(int64_t rows) const;
  // Adapts aim_ after a step with decoding rows and prompts, by the stochastic approximation of a
  // quantile (Robbins and Monro, 1951).
  void Aim(bool over);

  const std::chrono::nanoseconds budget_;
  double aim_ = kFirstAim;
  std::array<Smoothed, 17> decode_;  // [bit width of the rows]: steps without prompts
  Smoothed beside_;                  // nanoseconds of a prompt token in a step with decoding rows
  Smoothed alone_;                   // nanoseconds of a prompt token in a step without
  Smoothed fold_;                    // nanoseconds of a fold
};

}  // namespace polysketch
