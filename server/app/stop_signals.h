// SIGTERM and SIGINT as an event that main waits for.
#pragma once

#include <condition_variable>
#include <csignal>
#include <mutex>

namespace polysketch {

// Made first in main: all threads that start later inherit the blocked signals. One instance, which
// lives as long as the process: the thread behind it is never joined.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The number of the first signal. Before this is called a signal ends the process with 0 (there
  // is nothing to drain); after the first, another ends it at once with 128 + its number.
  int Wait();

 private:
  void Loop();

  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool waiting_ = false;  // guarded by mutex_
  int first_ = 0;         // guarded by mutex_
};

}  // namespace polysketch
