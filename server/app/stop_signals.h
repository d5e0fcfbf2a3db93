// Lets main wait for SIGTERM, SIGINT and SIGQUIT. SIGPIPE, SIGXFSZ, SIGHUP, SIGUSR1 and SIGUSR2
// have no effect.
#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>

namespace polysketch {

// Made first in main: threads that start later inherit the blocked signals. One instance, which
// lives as long as the process: its thread is never joined.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From this call on, the first signal waits for Wait. A signal before it ends the process with
  // status 0 (nothing is to be drained), a second signal with status 128 + its number. The same
  // signal again within kRepeat of the first is no second one: GNU's `timeout` sends each signal to
  // its child and to its process group.
  void BeginServing();
  static constexpr std::chrono::milliseconds kRepeat{1000};
  // Waits for the first signal and returns its number.
  int Wait();

 private:
  void Loop();

  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool serving_ = false;  // guarded by mutex_
  int first_ = 0;         // guarded by mutex_
};

}  // namespace polysketch
