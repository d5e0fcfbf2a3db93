#include "engine/scheduler/wait_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace polysketch {

int AgedLevel(int priority, std::chrono::nanoseconds waited, std::chrono::nanoseconds aging) {
  constexpr int64_t kMax = 1 << 20;  // far above any priority
  const int64_t aged = std::clamp<int64_t>(waited / aging, 0, kMax);
  return priority + static_cast<int>(aged);
}

int WaitQueue::Level(const Waiting& waiting, Clock::time_point now) const {
  return AgedLevel(waiting.sequence->priority(), now - waiting.since, aging_);
}

WaitQueue::Iterator WaitQueue::Next(Clock::time_point now, const TenantShares& shares,
                                    const std::function<bool(const Waiting&)>& eligible) {
  const auto rank = [&](const Waiting& waiting) {
    return std::tuple(waiting.source == nullptr, -Level(waiting, now),
                      shares.VirtualTime(waiting.sequence->tenant()), waiting.sequence->id());
  };
  Iterator best = list_.end();
  for (Iterator at = list_.begin(); at != list_.end(); ++at) {
    if (at->sequence->ended() || at->sequence->idle() || !eligible(*at)) continue;
    if (best == list_.end() || rank(*at) < rank(*best)) best = at;
  }
  return best;
}

Waiting WaitQueue::Take(Iterator at) {
  Waiting waiting = std::move(*at);
  list_.erase(at);
  return waiting;
}

}  // namespace polysketch
