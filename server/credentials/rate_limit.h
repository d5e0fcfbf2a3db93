// A limit per minute, as a token bucket: a minute's amount at once, then as much as time gives
// back.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace polysketch {

// Not thread-safe.
class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns how long a request must wait until `amount` fits below `per_minute`; 0: it fits now.
  // The limit is an argument because a new file of keys may change it.
  std::chrono::milliseconds Wait(int64_t per_minute, double amount, Clock::time_point now) {
    if (per_minute == 0) return std::chrono::milliseconds(0);
    const auto limit = static_cast<double>(per_minute);
    Refill(limit, now);
    const double missing = used_ + amount - limit;
    if (missing <= 0) return std::chrono::milliseconds(0);
    return std::chrono::milliseconds(static_cast<int64_t>(missing / limit * 60'000) + 1);
  }
  // Uses `amount`, which may exceed the limit: later requests then wait longer.
  void Use(double amount) { used_ += amount; }
  // Gives back what was used and not needed.
  void Return(double amount) { used_ = std::max(0.0, used_ - amount); }

 private:
  void Refill(double limit, Clock::time_point now) {
    const double minutes = std::chrono::duration<double>(now - refilled_).count() / 60;
    used_ = std::max(0.0, used_ - minutes * limit);
    refilled_ = now;
  }

  double used_ = 0;  // of the bucket
  Clock::time_point refilled_ = Clock::now();
};

}  // namespace polysketch
