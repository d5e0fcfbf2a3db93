// Slots: who gets one, and who gives his up.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/scheduler.h"

namespace polysketch {

bool Scheduler::Admit(Clock::time_point now) {
  const bool admitted = AdmitWhilePossible(now, /*preempted_only=*/false);
  // The next one lacks memory, and smaller ones behind do not overtake it for ever. But a preempted
  // one may change places with one that is idle: that takes nothing from anybody.
  return AdmitWhilePossible(now, /*preempted_only=*/true) || admitted;
}

bool Scheduler::AdmitWhilePossible(Clock::time_point now, bool preempted_only) {
  bool admitted = false;
  while (true) {
    WaitQueue::Iterator next = waiting_.Next(now, tenants_, [&](const Waiting& waiting) {
      return !preempted_only || waiting.state != nullptr;
    });
    if (next == waiting_.end()) return admitted;
    if (!HasRoom(1, BytesNeeded(*next)) && !MakeRoom(&*next, BytesNeeded(*next), now)) {
      next = ForkThatFits(now);
      if (next == waiting_.end()) return admitted;
    }
    const size_t bytes = BytesNeeded(*next);
    if (Place(next, now)) {
      admitted = true;
      continue;
    }
    if (!running_.empty()) return admitted;  // again when one of these has ended
    next->sequence->End(FinishReason::kError,
                        ResourceExhausted("no memory for a state of ", bytes, " bytes"));
    Sweep();
  }
}

WaitQueue::Iterator Scheduler::ForkThatFits(Clock::time_point now) {
  if (!running_.empty()) return waiting_.end();
  return waiting_.Next(now, tenants_, [&](const Waiting& waiting) {
    return waiting.source != nullptr && HasRoom(1, BytesNeeded(waiting));
  });
}

size_t Scheduler::BytesNeeded(const Waiting& waiting) const {
  if (waiting.state != nullptr) return waiting.state_bytes + waiting.fork_bytes;
  if (waiting.source != nullptr && waiting.source.use_count() == 1) return 0;  // takes it over
  const size_t one = states_.BytesFor(std::max<int64_t>(1, waiting.sequence->StateTokens()));
  const bool forks = waiting.source == nullptr && waiting.sequence->places() > 1;
  return forks ? 2 * one : one;
}

bool Scheduler::HasRoom(int slots, size_t bytes) const {
  return running() + slots <= options_.max_sequences &&
         bytes <= states_.limit() - states_.reserved();
}

bool Scheduler::MakeRoom(Waiting* next, size_t bytes, Clock::time_point now) {
  const int level = waiting_.Level(*next, now);
  std::vector<size_t> order;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].sequence->idle() || running_[i].level < level) order.push_back(i);
  }
  // Who cannot use his slot goes first; then the least important, the latest of them.
  std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    const auto rank = [this](size_t i) {
      return std::tuple(!running_[i].sequence->idle(), running_[i].level, -static_cast<int64_t>(i));
    };
    return rank(a) < rank(b);
  });
  // Its own place among the preempted is free for one of them.
  const size_t room = states_.preempted_limit() - states_.preempted() + next->preempted_bytes;
  std::vector<size_t> victims;
  size_t freed = 0;
  size_t preempted = 0;
  const auto enough = [&] {
    return running() - static_cast<int>(victims.size()) < options_.max_sequences &&
           bytes <= states_.limit() - states_.reserved() + freed;
  };
  for (const size_t i : order) {
    if (enough()) break;
    if (preempted + running_[i].reserved > room) continue;
    preempted += running_[i].reserved;
    freed += running_[i].reserved + running_[i].fork_reserved;
    victims.push_back(i);
  }
  if (!enough()) return false;
  states_.ReleasePreempted(std::exchange(next->preempted_bytes, 0));
  std::sort(victims.rbegin(), victims.rend());  // from behind: the indices before stay
  for (const size_t i : victims) Preempt(i, now);
  return true;
}

void Scheduler::Preempt(size_t index, Clock::time_point now) {
  Slot slot = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
  const bool preempted = states_.MoveToPreempted(slot.reserved);
  PS_CHECK(preempted);
  states_.Unreserve(slot.fork_reserved);
  ++preemptions_;
  waiting_.Add({.sequence = std::move(slot.sequence),
                .since = now,
                .state = std::move(slot.state),
                .state_bytes = slot.reserved,
                .fork_bytes = slot.fork_reserved,
                .preempted_bytes = slot.reserved});
}

bool Scheduler::Place(WaitQueue::Iterator at, Clock::time_point now) {
  Slot slot;
  slot.level = waiting_.Level(*at, now);
  slot.last_served = now;
  if (at->state != nullptr) {
    states_.ReleasePreempted(std::exchange(at->preempted_bytes, 0));
    const bool room = states_.Reserve(at->state_bytes + at->fork_bytes);
    PS_CHECK(room);
    slot.state = std::move(at->state);
    slot.reserved = at->state_bytes;
    slot.fork_reserved = at->fork_bytes;
  } else if (at->source != nullptr && at->source.use_count() == 1) {
    slot.state = std::move(at->source->state);
    slot.reserved = at->source->reserved;
  } else {
    slot.state = states_.Acquire();
    if (slot.state == nullptr) return false;
    const size_t bytes = BytesNeeded(*at);
    const bool room = states_.Reserve(bytes);
    PS_CHECK(room);
    if (at->source != nullptr) {
      slot.state->CopyFrom(*at->source->state);
    } else if (const Status status = at->sequence->Begin(slot.state.get()); !status.ok()) {
      at->sequence->End(FinishReason::kError, status);
    }
    const bool forks = at->source == nullptr && at->sequence->places() > 1;
    slot.reserved = forks ? bytes / 2 : bytes;
    slot.fork_reserved = bytes - slot.reserved;
  }
  slot.sequence = waiting_.Take(at).sequence;
  slot.sequence->OnAdmitted();
  running_.push_back(std::move(slot));
  Fork(&running_.back(), now);
  return true;
}

void Scheduler::Fork(Slot* slot, Clock::time_point now) {
  std::vector<std::unique_ptr<Sequence>> forks = slot->sequence->TakeForks();
  if (forks.empty()) return;
  const size_t bytes = std::exchange(slot->fork_reserved, 0);
  std::unique_ptr<SequenceState> state = states_.Acquire();
  std::shared_ptr<ForkSource> source;
  if (state != nullptr) {
    state->CopyFrom(*slot->state);
    source = std::make_shared<ForkSource>(&states_, std::move(state), bytes);
  } else {
    states_.Unreserve(bytes);
  }
  for (std::unique_ptr<Sequence>& fork : forks) {
    // One choice that fails takes the others with it.
    if (source == nullptr) fork->End(FinishReason::kError, ResourceExhausted("no memory to fork"));
    waiting_.Add({.sequence = std::move(fork), .since = now, .source = source});
  }
}

}  // namespace polysketch
