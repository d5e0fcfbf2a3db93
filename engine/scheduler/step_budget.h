// Limits the time that prompts add to a step with decoding sequences. The times of a prompt token
// and of a fold are measured step by step and smoothed. The time of a token grows with the keys
// that it reads of a KV cache, so it is kept by their number. The share of the budget that a step
// aims at follows from the number of steps that exceeded the budget. The limit decides how prompts
// are split, which does not change results.
//
// Used by the engine thread only.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace polysketch {

class StepBudget {
 public:
  // A chunk of a prompt. keys: what a token of it reads (LanguageModel::KeysRead).
  struct Chunk {
    int64_t tokens = 0;
    double keys = 0;
  };

  // `budget` 0: no limit.
  explicit StepBudget(std::chrono::nanoseconds budget) : budget_(budget) {}

  // Nanoseconds of prompts in a step with `decode_rows` decoding rows, before which copies of
  // states have taken `copying` of the budget. Infinity: no limit.
  double PromptTime(int64_t decode_rows,
                    std::chrono::nanoseconds copying = std::chrono::nanoseconds(0)) const;
  // Nanoseconds of a prompt token that reads `keys` keys, with a margin. For a number of keys that
  // no step had: at most in proportion to fewer keys, and no more than for more keys.
  double TokenTime(double keys) const;
  // Nanoseconds of a fold.
  double FoldTime() const;
  // Measures a step. `folds`: number of chunks that began with a fold.
  void OnStep(int64_t decode_rows, std::span<const Chunk> chunks, int64_t folds,
              std::chrono::nanoseconds duration);

  // The tokens that a step aims at before any step was measured.
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
    double WithMargin() const;
  };

  // By the keys that a token reads: up to kFewKeys, then two for each doubling.
  static constexpr size_t kDepths = 50;
  static constexpr double kFewKeys = 256;
  using TokenTimes = std::array<Smoothed, kDepths>;
  static size_t Depth(double keys);
  // As TokenTime, of these measurements; 0 without any.
  static double Find(const TokenTimes& times, double keys);

  // Nanoseconds of a step of `rows` decoding rows without prompts; 0 while unknown.
  double DecodeTime(int64_t rows) const;
  // Adds a step whose chunks took `time` to `times`. What each had of it is as expected, in
  // proportion.
  void Measure(std::span<const Chunk> chunks, double time, TokenTimes* times) const;
  // Adapts aim_ after a step with decoding rows and prompts, by the stochastic approximation of a
  // quantile (Robbins and Monro, 1951).
  void Aim(bool over);

  const std::chrono::nanoseconds budget_;
  double aim_ = kFirstAim;
  std::array<Smoothed, 17> decode_;  // [bit width of the rows]: steps without prompts
  TokenTimes beside_;                // a prompt token in a step with decoding rows
  TokenTimes alone_;                 // a prompt token in a step without
  Smoothed fold_;                    // a fold
};

}  // namespace polysketch
