#include "server/rpc/stuck_watch.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "base/start_thread.h"
#include "base/thread_name.h"

namespace polysketch {
namespace {

constexpr std::chrono::milliseconds kLongestPeriod{1000};
constexpr std::chrono::milliseconds kShortestPeriod{10};

}  // namespace

StuckWatch::StuckWatch(std::chrono::milliseconds limit, std::vector<Part> parts,
                       std::function<void(bool)> on_change)
    : limit_(limit), on_change_(std::move(on_change)) {
  const Clock::time_point now = Clock::now();
  for (Part& part : parts) parts_.push_back({.part = std::move(part), .since = now});
  thread_ = StartThread([this] {
    NameThread("stuck-watch");
    Loop();
  });
}

StuckWatch::~StuckWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StuckWatch::Loop() {
  const auto period = std::clamp(limit_ / 8, kShortestPeriod, kLongestPeriod);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return stop_; })) {
    lock.unlock();
    Look(Clock::now());
    lock.lock();
  }
}

void StuckWatch::Look(Clock::time_point now) {
  bool any = false;
  for (Watched& watched : parts_) {
    const WorkProgress progress = watched.part.progress();
    // A part whose only piece of work moves finishes none.
    if (!progress.has_work || progress.done != watched.done || progress.oldest != watched.oldest) {
      watched.done = progress.done;
      watched.oldest = progress.oldest;
      watched.since = now;
    }
    const Clock::time_point since = std::min(watched.since, progress.oldest.value_or(now));
    const bool stuck = now - since >= limit_;
    any = any || stuck;
    if (stuck == std::exchange(watched.stuck, stuck)) continue;
    if (stuck) {
      LogError("stuck", {{"part", watched.part.name},
                         {"without_progress_ms", limit_.count()},
                         {"effect", "health is NOT_SERVING"}});
    } else {
      LogWarning("not_stuck", {{"part", watched.part.name}});
    }
  }
  if (any != std::exchange(any_stuck_, any)) on_change_(any);
}

}  // namespace polysketch
