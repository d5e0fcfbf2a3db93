// Slots: which sequence gets a slot, and which sequence is preempted for it.
#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/scheduler.h"

namespace polysketch {

bool Scheduler::Admit(Clock::time_point now) {
  const bool admitted = AdmitWhilePossible(now, /*preempted_only=*/false);
  // The next sequence lacks memory, and smaller ones after it must not overtake it for ever. But a
  // preempted sequence may get the slot of an idle one: that takes memory from no other sequence.
  return AdmitWhilePossible(now, /*preempted_only=*/true) || admitted;
}

bool Scheduler::AdmitWhilePossible(Clock::time_point now, bool preempted_only) {
  bool admitted = false;
  while (true) {
    WaitQueue::Iterator next = waiting_.Next(now, clients_, [&](const Waiting& waiting) {
      return !preempted_only || waiting.preempted();
    });
    if (next == waiting_.end()) return admitted;
    if (!Fits(BytesNeeded(*next)) && !MakeRoom(&*next, now)) {
      next = ForkThatFits(now);
      if (next == waiting_.end()) return admitted;
    }
    const size_t bytes = BytesNeeded(*next);
    if (AssignSlot(next, now)) {
      admitted = true;
      continue;
    }
    if (!running_.empty()) return admitted;  // try again when a running sequence has ended
    next->sequence->End(FinishReason::kError,
                        ResourceExhausted("no memory for a state of ", bytes, " bytes"));
    RemoveEnded();
  }
}

WaitQueue::Iterator Scheduler::ForkThatFits(Clock::time_point now) {
  if (!running_.empty()) return waiting_.end();
  return waiting_.Next(now, clients_, [&](const Waiting& waiting) {
    return waiting.source != nullptr && Fits(BytesNeeded(waiting));
  });
}

size_t Scheduler::BytesNeeded(const Waiting& waiting) const {
  if (waiting.preempted()) return waiting.own.slot_bytes();
  if (waiting.takes_source()) return 0;
  const size_t bytes = states_.BytesFor(std::max<int64_t>(1, waiting.sequence->StateTokens()));
  return waiting.will_fork() ? 2 * bytes : bytes;
}

bool Scheduler::Fits(size_t bytes, int sequences, size_t freed) const {
  return running() - sequences < options_.max_sequences &&
         bytes <= states_.limit() - states_.reserved() + freed;
}

bool Scheduler::MakeRoom(Waiting* next, Clock::time_point now) {
  const size_t bytes = BytesNeeded(*next);
  // The preempted memory of `next` itself is free for a sequence that it preempts.
  const size_t room = states_.preempted_limit() - states_.preempted() + next->preempted_bytes;
  std::vector<size_t> victims;
  size_t freed = 0;
  size_t preempted = 0;
  const auto fits = [&] { return Fits(bytes, static_cast<int>(victims.size()), freed); };
  for (const size_t i : PreemptionOrder(*next, now)) {
    if (fits()) break;
    const SlotState& own = running_[i].own;
    if (preempted + own.bytes > room) continue;
    preempted += own.bytes;
    freed += own.slot_bytes();
    victims.push_back(i);
  }
  if (!fits()) return false;
  states_.ReleasePreempted(std::exchange(next->preempted_bytes, 0));
  std::sort(victims.rbegin(), victims.rend());  // descending, so that indices stay valid
  for (const size_t i : victims) Preempt(i, now);
  return true;
}

std::vector<size_t> Scheduler::PreemptionOrder(const Waiting& next, Clock::time_point now) const {
  const int level = waiting_.Level(next, now);
  const int claim = waiting_.Claim(next, now);
  // Idle sequences first; then the lowest level, and within it the latest admission. Each sequence is
  // asked once whether it is idle: its reader, on another thread, may change that during the sort,
  // which then would compare differently and leave the array.
  std::vector<std::tuple<bool, int, int64_t>> ranks;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Slot& slot = running_[i];
    if (slot.own.loader != nullptr) continue;  // forks may wait until the state is loaded
    const bool own = slot.sequence->client() == next.sequence->client();
    const bool idle = slot.sequence->idle();
    if (idle || (own ? slot.level < level : slot.claim < claim))
      ranks.emplace_back(!idle, slot.level, -static_cast<int64_t>(i));
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<size_t> order;
  order.reserve(ranks.size());
  for (const auto& rank : ranks) order.push_back(static_cast<size_t>(-std::get<2>(rank)));
  return order;
}

void Scheduler::Preempt(size_t index, Clock::time_point now) {
  Slot slot = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
  const size_t bytes = slot.own.bytes;
  const bool moved = states_.MoveToPreempted(bytes);
  PS_CHECK(moved);
  states_.Unreserve(slot.own.fork_bytes);
  ++preemptions_;
  waiting_.Add({.sequence = std::move(slot.sequence),
                .since = now,
                .own = std::move(slot.own),
                .preempted_bytes = bytes});
}

bool Scheduler::AssignSlot(WaitQueue::Iterator at, Clock::time_point now) {
  Slot slot{.sequence = nullptr,
            .own = {},
            .level = waiting_.Level(*at, now),
            .claim = waiting_.Claim(*at, now),
            .last_served = now};
  const bool first = at->starts_anew();
  if (at->preempted()) {
    states_.ReleasePreempted(std::exchange(at->preempted_bytes, 0));
    const bool room = states_.Reserve(at->own.slot_bytes());
    PS_CHECK(room);
    slot.own = std::move(at->own);
  } else if (at->takes_source()) {
    slot.own = {std::move(at->source->state), at->source->reserved};
  } else if (!StartState(&*at, &slot.own)) {
    return false;
  }
  slot.sequence = waiting_.TakeForSlot(at, now).sequence;
  slot.sequence->OnAdmitted();
  if (first) options_.on_admitted(*slot.sequence);
  running_.push_back(std::move(slot));
  if (running_.back().own.loader == nullptr) Fork(&running_.back(), now);
  return true;
}

bool Scheduler::StartState(Waiting* waiting, SlotState* own) {
  own->state = states_.Acquire();
  if (own->state == nullptr) return false;
  const size_t bytes = BytesNeeded(*waiting);
  const bool room = states_.Reserve(bytes);
  PS_CHECK(room);
  own->bytes = waiting->will_fork() ? bytes / 2 : bytes;
  own->fork_bytes = bytes - own->bytes;
  if (waiting->source != nullptr) {
    own->loader = std::make_unique<StateLoader>(waiting->source, own->state->parts());
  } else if (auto saved = waiting->sequence->Begin(); saved != nullptr) {
    own->loader = std::make_unique<StateLoader>(std::move(saved), own->state->parts());
  } else if (!own->state->cleared()) {
    own->loader = std::make_unique<StateLoader>(own->state->parts());
  }
  return true;
}

void Scheduler::Fork(Slot* slot, Clock::time_point now) {
  std::vector<std::unique_ptr<Sequence>> forks = slot->sequence->TakeForks();
  if (forks.empty()) return;
  const size_t bytes = std::exchange(slot->own.fork_bytes, 0);
  std::shared_ptr<ForkSource> source;
  if (std::unique_ptr<SequenceState> state = states_.Acquire(); state != nullptr) {
    // The sequence itself goes on from a copy.
    std::swap(state, slot->own.state);
    source = std::make_shared<ForkSource>(&states_, std::move(state), bytes);
    slot->own.loader = std::make_unique<StateLoader>(source, slot->state().parts());
  } else {
    states_.Unreserve(bytes);
  }
  for (std::unique_ptr<Sequence>& fork : forks) {
    if (source == nullptr) fork->End(FinishReason::kError, ResourceExhausted("no memory to fork"));
    waiting_.Add({.sequence = std::move(fork), .since = now, .source = source});
  }
}

}  // namespace polysketch
