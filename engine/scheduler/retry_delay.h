// When a request that found the queue full should come again: as long as it takes for as many
// places to become free as were refused, so that those who were refused do not come back all at
// once.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/request/request.h"

namespace polysketch {

class RetryDelay {
 public:
  // A request ended: its place is free.
  void OnEnded(Clock::time_point now);
  // A request is refused: its delay.
  std::chrono::milliseconds OnRefused();

  static constexpr std::chrono::milliseconds kMin{50};
  static constexpr std::chrono::milliseconds kMax{30000};

 private:
  double interval_ = 1e9;  // nanoseconds between endings, smoothed
  Clock::time_point last_ended_ = Clock::time_point::min();
  int64_t refused_ = 0;  // and not made up for by an ending
};

}  // namespace polysketch
