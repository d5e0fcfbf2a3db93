// Time measurement: a stopwatch, seconds per call, the median.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace polysketch::bench {

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Seconds of a call of `fn`, which is called for at least `min_seconds`.
template <typename Fn>
double SecondsPerCall(double min_seconds, const Fn& fn) {
  int calls = 0;
  const Stopwatch watch;
  do {
    fn();
    ++calls;
  } while (watch.Seconds() < min_seconds);
  return watch.Seconds() / calls;
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  if (n == 0) return 0;
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace polysketch::bench
