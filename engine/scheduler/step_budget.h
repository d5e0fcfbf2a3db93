// How many prompt tokens a step may take beside decoding sequences, so that it takes at most so
// much longer than it would without them. What a token costs, and the fold of a block, is measured
// on this machine, step by step, and smoothed; and how much of the budget a step may aim at follows
// from how many steps went over it. It decides how work is cut, never what comes out of it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace polysketch {

class StepBudget {
 public:
  // 0: no bound.
  explicit StepBudget(std::chrono::nanoseconds budget) : budget_(budget) {}

  // Most prompt tokens beside `decode_rows` rows; at least kMin, so that prompts get on.
  int64_t PromptTokens(int64_t decode_rows) const;
  // As many tokens as the fold of a block costs.
  int64_t FoldTokens() const;
  // What a step was and how long it took. `folds`: of blocks of prompts.
  void OnStep(int64_t decode_rows, int64_t prompt_tokens, int64_t folds,
              std::chrono::nanoseconds duration);

  static constexpr int64_t kMin = 4;
  // The first guess, before any step was measured.
  static constexpr int64_t kFirst = 16;
  // What is aimed at, of the budget: the rest is for what a mean does not foresee, another process
  // on these processors above all.
  static constexpr double kFirstAim = 0.65;
  static constexpr double kMinAim = 0.5;
  static constexpr double kMaxAim = 0.9;

 private:
  // A mean that follows, and how far measurements stray from it (both as TCP smooths round trips).
  // A measurement far outside, of a step that something else held up, counts as one at kFar
  // deviations: many of them move the mean, one does not.
  struct Smoothed {
    double mean = 0;
    double deviation = 0;
    bool known = false;
    static constexpr double kFar = 4;
    void Add(double value);
  };

  // Nanoseconds of a step of this many decoding rows alone; 0 while nothing is known about it.
  double DecodeTime(int64_t rows) const;
  // After a step with both: a quantile, followed by its own steps (Robbins and Monro, 1951).
  void Aim(bool over);

  const std::chrono::nanoseconds budget_;
  double aim_ = kFirstAim;
  std::array<Smoothed, 17> decode_;  // [bit width of the rows]: steps without prompts
  Smoothed beside_;                  // nanoseconds of a prompt token in a step with decoding rows
  Smoothed alone_;                   // ... in a step without
  Smoothed fold_;                    // nanoseconds of a fold
};

}  // namespace polysketch
