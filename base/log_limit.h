// Limits the log lines of an event that strangers cause: a flood of calls must not flood the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace polysketch {

// Thread-safe.
class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // `left_out`, in static storage, is the event of a line that counts the lines which were left
  // out. That line precedes the next one that may be written.
  LogLimit(std::string_view left_out, int64_t per_second)
      : left_out_(left_out), per_second_(per_second) {}

  // Whether a line may be written now: `per_second` lines in each second of the clock.
  bool Allow(Clock::time_point now = Clock::now());

 private:
  const std::string_view left_out_;
  const int64_t per_second_;
  std::mutex mutex_;
  int64_t second_ = 0;  // guarded by mutex_
  int64_t count_ = 0;   // guarded by mutex_
};

}  // namespace polysketch
