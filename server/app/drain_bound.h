// A drain ends in time, whatever hangs: a state store that does not answer, a file system, a
// library that waits for its threads.
#pragma once

#include <atomic>
#include <chrono>

namespace polysketch {

// From Start on, the process ends after `time`, with the exit status last set. Until SetExitStatus
// the status is 1: requests or sessions were lost. Made before the process serves, since the
// machine may give no thread later. One instance, which lives as long as the process: its thread is
// never joined.
class DrainBound {
 public:
  explicit DrainBound(std::chrono::milliseconds time);
  DrainBound(const DrainBound&) = delete;
  DrainBound& operator=(const DrainBound&) = delete;

  void Start();
  void SetExitStatus(int status) { exit_status_.store(status); }

 private:
  std::atomic<bool> started_{false};
  std::atomic<int> exit_status_{1};
};

}  // namespace polysketch
