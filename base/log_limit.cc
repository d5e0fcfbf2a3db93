#include "base/log_limit.h"

#include <algorithm>

#include "base/logging.h"

namespace polysketch {

bool LogLimit::Allow(Clock::time_point now) {
  const int64_t second =
      std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  int64_t left_out = 0;
  bool allow = false;
  {
    const std::lock_guard lock(mutex_);
    if (second != second_) {
      left_out = std::max<int64_t>(count_ - per_second_, 0);
      second_ = second;
      count_ = 0;
    }
    allow = ++count_ <= per_second_;
  }
  if (left_out > 0) LogWarning(left_out_, {{"count", left_out}});
  return allow;
}

}  // namespace polysketch
