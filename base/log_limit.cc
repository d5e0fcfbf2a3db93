#include "base/log_limit.h"

#include <algorithm>
#include <chrono>

#include "base/logging.h"

namespace polysketch {
namespace {

constexpr int64_t kMaxPerSecond = 50;

}  // namespace

bool LogLimit::Allow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  int64_t left_out = 0;
  bool allow = false;
  {
    const std::lock_guard lock(mutex_);
    if (second != second_) {
      left_out = std::max<int64_t>(count_ - kMaxPerSecond, 0);
      second_ = second;
      count_ = 0;
    }
    allow = ++count_ <= kMaxPerSecond;
  }
  if (left_out > 0) LogWarning(left_out_, {{"count", left_out}});
  return allow;
}

}  // namespace polysketch
