// A limit of events a second that allows bursts.
#pragma once

#include <algorithm>
#include <chrono>

namespace polysketch {

// Fills by one for each event and leaks at a constant rate. Not thread-safe.
class TokenBucket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `rate`: events a second that leak. `capacity`: events that fit.
  TokenBucket(double rate, double capacity) : rate_(rate), capacity_(capacity) {}

  // Adds `events`. Returns whether the bucket is not above its capacity.
  bool Add(double events, TimePoint now) {
    level_ = Level(now) + events;
    leaked_ = now;
    return level_ <= capacity_;
  }
  // Whether Add(1) would return true.
  bool Fits(TimePoint now) const { return Level(now) + 1 <= capacity_; }
  // Events that have not leaked.
  double Level(TimePoint now) const {
    const double elapsed = std::chrono::duration<double>(now - leaked_).count();
    return std::max(0.0, level_ - elapsed * rate_);
  }
  // Takes `events` out, which a peer has earned.
  void Remove(double events) { level_ = std::max(0.0, level_ - events); }

 private:
  const double rate_;
  const double capacity_;
  double level_ = 0;
  TimePoint leaked_{};
};

}  // namespace polysketch
