// Lengths of prompts and outputs, as the command line names them.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>

#include "base/status.h"

namespace polysketch::loadgen {

// The same on every platform for a seed, as std::mt19937_64 is and the library's distributions are
// not.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  uint64_t Bits() { return bits_(); }
  double Uniform();              // [0, 1)
  int64_t Below(int64_t limit);  // [0, limit), limit > 0
  double Exponential();          // of mean 1
  double Normal();               // of mean 0 and deviation 1

 private:
  std::mt19937_64 bits_;
};

// "128", "uniform:LEAST:MOST", "normal:MEAN:DEVIATION", "exponential:MEAN",
// "lognormal:MEDIAN:SIGMA". Draws are whole numbers of at least 1 and at most kMax.
class Distribution {
 public:
  static constexpr int64_t kMax = int64_t{1} << 24;

  Distribution() = default;  // always 1
  // INVALID_ARGUMENT says what was expected.
  static Result<Distribution> Parse(std::string_view text);
  int64_t Draw(Random* random) const;

 private:
  enum class Kind { kFixed, kUniform, kNormal, kExponential, kLognormal };
  Kind kind_ = Kind::kFixed;
  double a_ = 1;
  double b_ = 0;
};

}  // namespace polysketch::loadgen
