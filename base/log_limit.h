// Limits the log lines of an event that strangers cause: a flood of calls must not flood the log.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

namespace polysketch {

// Thread-safe.
class LogLimit {
 public:
  // Lines that were left out are counted by one line of the event `left_out`, in static storage.
  explicit LogLimit(std::string_view left_out) : left_out_(left_out) {}

  // Whether a line may be written now: 50 a second.
  bool Allow();

 private:
  const std::string_view left_out_;
  std::mutex mutex_;
  int64_t second_ = 0;  // guarded by mutex_
  int64_t count_ = 0;   // guarded by mutex_
};

}  // namespace polysketch
