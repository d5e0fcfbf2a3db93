// Watches the threads that every request needs, and reports when one is stuck: it has work, and the
// work does not move for a time. Readiness follows, so that no new requests come; they come
// again when the thread moves.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace polysketch {

// What a watched part has done.
struct WorkProgress {
  bool has_work = false;
  int64_t done = 0;  // pieces of work, since the start
  // When the running piece started or last moved that has not moved for longest; unset: none runs,
  // or the part has one thread. Of several threads one may be stuck while the others finish work.
  std::optional<std::chrono::steady_clock::time_point> oldest = std::nullopt;

  // Adds a running piece.
  void AddRunning(std::optional<std::chrono::steady_clock::time_point> since) {
    if (since && (!oldest || *since < *oldest)) oldest = since;
  }
};

class StuckWatch {
 public:
  struct Part {
    std::string name;  // in logs: "store"
    std::function<WorkProgress()> progress;
  };

  // A part is stuck after `limit` in which it finishes no piece, or one does not move. `on_change`
  // runs on the watch's thread when the first part is stuck (true), and when none is any more
  // (false). Each part is logged once when it is stuck, and once when it moves again.
  StuckWatch(std::chrono::milliseconds limit, std::vector<Part> parts,
             std::function<void(bool)> on_change);
  ~StuckWatch();
  StuckWatch(const StuckWatch&) = delete;
  StuckWatch& operator=(const StuckWatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    Part part;
    int64_t done = -1;
    std::optional<Clock::time_point> oldest = std::nullopt;
    Clock::time_point since;  // of the last progress
    bool stuck = false;
  };

  void Loop();
  void Look(Clock::time_point now);

  const std::chrono::milliseconds limit_;
  const std::function<void(bool)> on_change_;
  std::vector<Watched> parts_;  // the watch's thread
  bool any_stuck_ = false;      // the watch's thread
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace polysketch
