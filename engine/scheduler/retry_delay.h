// When a client whose request was refused because the queue was full should retry: after the time in
// which the queue frees one slot for each refused request, so that the refused clients do not retry
// all at once.
//
// Not thread-safe; Mailbox guards it.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/request/clock.h"

namespace polysketch {

class RetryDelay {
 public:
  // A request ended.
  void OnEnded(Clock::time_point now);
  // A request is refused. Returns its delay.
  std::chrono::milliseconds OnRefused();

  static constexpr std::chrono::milliseconds kMin{50};
  static constexpr std::chrono::milliseconds kMax{30000};

 private:
  double interval_ = 1e9;  // nanoseconds between endings, smoothed
  Clock::time_point last_ended_ = Clock::time_point::min();
  int64_t refused_ = 0;  // requests, less the requests that ended since
};

}  // namespace polysketch
