#include "engine/scheduler/retry_delay.h"

#include <algorithm>

namespace polysketch {

void RetryDelay::OnEnded(Clock::time_point now) {
  if (last_ended_ != Clock::time_point::min()) {
    const std::chrono::nanoseconds since = now - last_ended_;
    interval_ +=
        (static_cast<double>(std::min<std::chrono::nanoseconds>(since, kMax).count()) - interval_) /
        8;
  }
  last_ended_ = now;
  refused_ = std::max<int64_t>(0, refused_ - 1);
}

std::chrono::milliseconds RetryDelay::OnRefused() {
  ++refused_;
  const double delay = interval_ * static_cast<double>(refused_) / 1e6;
  return std::chrono::milliseconds(static_cast<int64_t>(
      std::clamp(delay, static_cast<double>(kMin.count()), static_cast<double>(kMax.count()))));
}

}  // namespace polysketch
