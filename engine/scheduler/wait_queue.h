// The sequences that wait for a slot, and which of them is next: the one of the highest level;
// among equals that of the tenant that has had least; of one tenant the one that came first. Forks
// go before all: their request has been admitted, and holds memory for them until they begin.
//
// A level is the request's priority, and one more for every `aging` that it has waited: so nobody
// waits for ever, however many of a higher priority keep coming.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "engine/scheduler/fork_source.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/tenant_shares.h"
#include "kernels/backend.h"

namespace polysketch {

struct Waiting {
  std::unique_ptr<Sequence> sequence;
  Clock::time_point since;
  // What it goes on from; with neither, it begins with an empty state.
  std::unique_ptr<SequenceState> state = nullptr;  // its own: it had a slot and gave it up
  size_t state_bytes = 0;                          // what to reserve for it in a slot
  size_t fork_bytes = 0;                           // ... and for the source of its forks to come
  size_t preempted_bytes = 0;                      // counted in StatePool::preempted
  std::shared_ptr<ForkSource> source = nullptr;    // that of the sequence it is a fork of
};

class WaitQueue {
 public:
  using Iterator = std::list<Waiting>::iterator;

  explicit WaitQueue(std::chrono::nanoseconds aging) : aging_(aging) {}

  void Add(Waiting waiting) { list_.push_back(std::move(waiting)); }
  // The next that could use a slot now, of those that `wanted` holds for; end() when there is none.
  Iterator Next(Clock::time_point now, const TenantShares& shares,
                const std::function<bool(const Waiting&)>& wanted);
  int Level(const Waiting& waiting, Clock::time_point now) const;
  Waiting Take(Iterator at);

  Iterator begin() { return list_.begin(); }
  Iterator end() { return list_.end(); }
  const std::list<Waiting>& list() const { return list_; }

 private:
  const std::chrono::nanoseconds aging_;
  std::list<Waiting> list_;
};

// `priority` and one more for every whole `aging` that has passed.
int AgedLevel(int priority, std::chrono::nanoseconds waited, std::chrono::nanoseconds aging);

}  // namespace polysketch
