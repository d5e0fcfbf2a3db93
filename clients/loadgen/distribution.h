// Distributions of prompt and output lengths.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch::loadgen {

// Pseudo-random numbers that depend on the seed alone, on every platform: std::mt19937_64 is
// specified, the distributions of the standard library are not.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  uint64_t Bits() { return bits_(); }
  double Uniform();              // [0, 1)
  int64_t Below(int64_t limit);  // [0, limit), limit > 0
  double Exponential();          // mean 1
  double Normal();               // mean 0, standard deviation 1

 private:
  std::mt19937_64 bits_;
};

// "128", "uniform:MIN:MAX", "normal:MEAN:DEVIATION", "exponential:MEAN", "lognormal:MEDIAN:SIGMA".
// Samples are integers from 1 to kMax.
class Distribution {
 public:
  static constexpr int64_t kMax = int64_t{1} << 24;

  Distribution() = default;  // always 1
  // INVALID_ARGUMENT says what was expected.
  static Result<Distribution> Parse(std::string_view text);
  int64_t Sample(Random* random) const;
  const std::string& text() const { return text_; }  // as given to Parse

 private:
  std::string text_ = "1";
  double (*sample_)(double a, double b, Random* random) = nullptr;  // null: always a_
  double a_ = 1;
  double b_ = 0;
};

}  // namespace polysketch::loadgen
