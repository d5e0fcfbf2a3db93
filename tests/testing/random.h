// Random test inputs: the same numbers on every machine, standard library and run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace polysketch::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // In [0, 1). The standard library's distributions may differ between implementations.
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double Uniform(double low, double high) { return low + (high - low) * Uniform(); }
  // In [low, high].
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }

  std::vector<float> Normals(size_t size, double scale = 1, double mean = 0) {
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(mean + scale * Normal());
    return values;
  }

  // Cuts `total` >= 1 into a random number of parts >= 1, in order.
  std::vector<int> Split(int total) {
    std::vector<int> parts;
    const int64_t largest = Int(1, total);
    while (total > 0) {
      const int part = static_cast<int>(Int(1, std::min<int64_t>(largest, total)));
      parts.push_back(part);
      total -= part;
    }
    return parts;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace polysketch::testing
