// Signals that ask a program to end what it does.
#pragma once

#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace polysketch {

// For the handler of signal `number`: whether the signal is the first that a handler takes. A
// second one ends the process, as without a handler. One within a second of the first is a repeat,
// and does nothing: GNU's `timeout` sends each signal to its child and to its process group.
inline bool IsFirstSignal(int number) {
  static constinit std::atomic<int64_t> first_ms = 0;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t ms = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;  // not 0
  int64_t first = 0;
  if (first_ms.compare_exchange_strong(first, ms)) return true;
  if (ms - first > 1000) {
    signal(number, SIG_DFL);
    raise(number);
  }
  return false;
}

}  // namespace polysketch
