// The work of a thread as others see it: when it last moved, and whether it is still wanted.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

namespace polysketch {

// Of one thread, which calls Start and End. Other members may be called on any thread.
class RunningWork {
 public:
  using Clock = std::chrono::steady_clock;

  // The one of the calling thread, which sets it; null: none.
  static RunningWork*& OfThread() {
    static thread_local RunningWork* work = nullptr;
    return work;
  }

  void Start() {
    unwanted_.store(false);
    moved_.store(Clock::now().time_since_epoch().count());
  }
  void End() { moved_.store(0); }
  // The caller that waited for the work has left.
  void SetUnwanted() { unwanted_.store(true); }

  // When the running work started or last moved; unset: none runs.
  std::optional<Clock::time_point> since() const {
    const Clock::rep moved = moved_.load();
    if (moved == 0) return std::nullopt;
    return Clock::time_point(Clock::duration(moved));
  }

  // The work of the calling thread has moved: a part of it that may have waited for the outside has
  // ended.
  static void Moved() {
    if (RunningWork* const work = OfThread(); work != nullptr && work->moved_.load() != 0)
      work->moved_.store(Clock::now().time_since_epoch().count());
  }
  // Whether no caller waits for the work of the calling thread any more.
  static bool IsUnwanted() { return OfThread() != nullptr && OfThread()->unwanted_.load(); }

 private:
  std::atomic<Clock::rep> moved_ = 0;
  std::atomic<bool> unwanted_ = false;
};

}  // namespace polysketch
