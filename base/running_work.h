// The work of a thread as others see it: when it last moved, whether it is still wanted, and
// whether it has begun to change something.
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
    state_.store(State::kWanted);
    moved_.store(Clock::now().time_since_epoch().count());
  }
  void End() { moved_.store(0); }
  // The caller that waited for the work leaves. Returns false if BeginChange has returned true:
  // what becomes of the change is unknown.
  bool SetUnwanted() {
    State wanted = State::kWanted;
    return state_.compare_exchange_strong(wanted, State::kUnwanted) || wanted == State::kUnwanted;
  }

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
  // Called by the work of the calling thread before it changes what others see. Returns false if no
  // caller waits for it any more: it changes nothing then.
  static bool BeginChange() {
    RunningWork* const work = OfThread();
    State wanted = State::kWanted;
    return work == nullptr || work->state_.compare_exchange_strong(wanted, State::kChanging) ||
           wanted == State::kChanging;
  }

 private:
  enum class State { kWanted, kUnwanted, kChanging };

  std::atomic<Clock::rep> moved_ = 0;
  std::atomic<State> state_ = State::kWanted;
};

}  // namespace polysketch
