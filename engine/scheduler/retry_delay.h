// The delay after which a client whose request was refused because the queue was full should retry:
// the time in which the queue frees one slot for each refused request, so that the refused clients
// do not retry all at once.
//
// Not thread-safe; Mailbox guards it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "engine/request/clock.h"

namespace polysketch {

class RetryDelay {
 public:
  // Called when a request has ended.
  void OnEnded(Clock::time_point now) {
    if (last_ended_ != Clock::time_point::min()) {
      const std::chrono::nanoseconds since =
          std::min<std::chrono::nanoseconds>(now - last_ended_, kMax);
      interval_ += (static_cast<double>(since.count()) - interval_) / 8;
    }
    last_ended_ = now;
    refused_ = std::max<int64_t>(0, refused_ - 1);
  }
  // Called when a request is refused. Returns its delay.
  std::chrono::milliseconds OnRefused() {
    ++refused_;
    const double delay = interval_ * static_cast<double>(refused_) / 1e6;
    return std::clamp(std::chrono::milliseconds(static_cast<int64_t>(std::min(delay, 1e9))), kMin,
                      kMax);
  }

  static constexpr std::chrono::milliseconds kMin{50};
  static constexpr std::chrono::milliseconds kMax{30000};

 private:
  double interval_ = 1e9;  // nanoseconds between endings, smoothed
  Clock::time_point last_ended_ = Clock::time_point::min();
  int64_t refused_ = 0;  // requests, less the requests that ended since
};

}  // namespace polysketch
