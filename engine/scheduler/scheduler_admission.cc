// Slots: which sequence gets a slot, and which sequence is preempted for it.
#include <algorithm>
#include <limits>
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
  // Preemptions of a tick are bounded: each sequence gets a step before it may be preempted again.
  const int64_t most = preemptions_ + options_.max_sequences;
  while (preemptions_ <= most && !waiting_.list().empty()) {
    const Holdings holdings = FindHoldings();
    WaitQueue::Iterator next = waiting_.Next(now, turns_, holdings, [&](const Waiting& waiting) {
      return !preempted_only || waiting.has_state();
    });
    if (next == waiting_.end()) return admitted;
    if (!Fits(BytesNeeded(*next)) && !MakeRoom(&*next, holdings, now)) {
      next = ForkThatFits(now);
      if (next == waiting_.end() && grows_ && running_.empty() && DropSource()) continue;
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
  return admitted;
}

WaitQueue::Iterator Scheduler::ForkThatFits(Clock::time_point now) {
  if (!running_.empty()) return waiting_.end();
  return waiting_.Next(now, turns_, {}, [&](const Waiting& waiting) {
    return waiting.source != nullptr && Fits(BytesNeeded(waiting));
  });
}

size_t Scheduler::BytesNeeded(const Waiting& waiting) const {
  if (waiting.has_state()) {
    const size_t room_to_grow = grows_ ? BytesToStart(*waiting.sequence) : 0;
    return std::max(waiting.own.bytes, room_to_grow) + waiting.own.fork_bytes;
  }
  if (waiting.takes_source()) return 0;
  const size_t bytes = BytesToStart(*waiting.sequence);
  return waiting.sequence->will_fork() ? 2 * bytes : bytes;
}

bool Scheduler::Fits(size_t bytes, int sequences, size_t freed) const {
  return running() - sequences < options_.max_sequences &&
         bytes <= states_.limit() - states_.reserved() + freed;
}

// Room for `next` is taken
//   - from any idle sequence, while preempted memory has room for its state;
//   - from one of the same part of the same client that has a lower level;
//   - from one of another client, or of another part of the same client,
//       that was admitted with a lower claim, but not the only one of its client if the client of
//         `next` has a slot,
//       or of a client that holds so much more that it still holds as much afterwards, unless it
//       has
//         a higher priority and the client of `next` has a slot,
//       or that has had its slot for a slice, if `next` is the first sequence of a client without a
//         slot, of at least its priority.
// So a client without a slot gets one at once where another has two, and within a slice where each
// has one; clients with equal priorities converge to equal holdings.
//
// Under KvAdmission::kReserve a slot is taken, never memory, and only while preempted memory has
// room.
//
// Otherwise, where preempted memory is full, a state is dropped: one of the client that has most of
// them, the one whose tokens are processed again fastest. Not for the sake of a waiting time alone
// before a sequence has done as much as it did again.
class Scheduler::RoomMaker {
 public:
  RoomMaker(const Scheduler& scheduler, const Waiting& next, const Holdings& holdings,
            Clock::time_point now)
      : scheduler_(scheduler),
        next_(next),
        now_(now),
        drops_(scheduler.options_.kv_admission == KvAdmission::kPreempt),
        holdings_(holdings),
        priority_(next.sequence->priority()),
        level_(scheduler.waiting_.Level(next, now)),
        claim_(scheduler.waiting_.Claim(next, now, holdings)),
        // The preempted memory of `next` itself is free for a sequence that it preempts.
        room_(scheduler.states_.preempted_limit() - scheduler.states_.preempted() +
              next.preempted_bytes) {
    for (const Slot& slot : scheduler.running_) {
      // Its reader, on another thread, may change whether a sequence is idle: each is asked once.
      // Forks may wait until a state is loaded; one that is saved may not change.
      victims_.push_back({slot.copying() || slot.sequence->ended(), slot.sequence->idle()});
    }
    for (const Waiting& waiting : scheduler.waiting_.list()) {
      if (&waiting != &next && waiting.may_drop()) droppable_ += waiting.own.bytes;
    }
  }

  // Returns the indices in running_ of sequences without which `next`, which needs `bytes`, fits;
  // none if it cannot.
  std::vector<size_t> Find(size_t bytes) {
    std::vector<size_t> found;
    const StatePool& states = scheduler_.states_;
    if (!drops_ && bytes > states.limit() - states.reserved()) return found;
    size_t freed = 0;
    const Holding wanted = scheduler_.HoldingOf(bytes);
    while (!scheduler_.Fits(bytes, static_cast<int>(found.size()), freed)) {
      const std::optional<size_t> victim = Best(wanted);
      if (!victim) return {};
      const Slot& slot = scheduler_.running_[*victim];
      victims_[*victim].taken = true;
      Take(slot);
      freed += slot.own.slot_bytes();
      found.push_back(*victim);
    }
    return found;
  }

 private:
  struct Victim {
    bool taken = false;  // or cannot be
    bool idle = false;
  };

  std::optional<size_t> Best(const Holding& wanted) const {
    std::optional<size_t> best;
    const auto rank = [&](size_t i) {
      const Slot& slot = scheduler_.running_[i];
      const std::string& client = slot.sequence->client();
      const std::string& part = slot.sequence->part();
      const Turns::Time time = scheduler_.turns_.Of(slot.sequence->principal());
      return std::tuple(!victims_[i].idle, slot.sequence->priority(), -holdings_.at(client).share(),
                        -time.principal, -holdings_.at(part).share(), -time.part,
                        FitsPreempted(slot) ? 0 : slot.sequence->DropCost().value_or(kNotDropped),
                        -static_cast<int64_t>(i));
    };
    for (size_t i = 0; i < victims_.size(); ++i) {
      if (victims_[i].taken || !MayTake(i, wanted)) continue;
      if (!best || rank(i) < rank(*best)) best = i;
    }
    return best;
  }

  bool MayTake(size_t i, const Holding& wanted) const {
    const Slot& slot = scheduler_.running_[i];
    const Sequence& sequence = *slot.sequence;
    const bool fits = FitsPreempted(slot);
    if (!fits && !drops_) return false;
    const bool drops = sequence.DropCost().has_value();
    const size_t bytes = scheduler_.BytesToKeep(slot);
    if (!fits && !drops && bytes > room_ + droppable_) return false;
    if (sequence.part() == next_.sequence->part()) {
      const bool lower = slot.level < level_;
      if (lower && sequence.priority() < priority_) return true;
      // What cannot be dropped leaves room for sequences of others.
      if (!fits || (!drops && !next_.has_state() && 2 * bytes > room_)) return false;
      return victims_[i].idle || lower;
    }
    if (victims_[i].idle && fits) return true;
    const bool settled = fits || (sequence.missing() == 0 && slot.settled <= now_);
    // Towards another part of the same client the same rules hold as towards another client.
    const bool same = sequence.client() == next_.sequence->client();
    const std::string& theirs = same ? sequence.part() : sequence.client();
    const auto own = holdings_.find(same ? next_.sequence->part() : next_.sequence->client());
    const bool has_slot = own != holdings_.end();
    const Holding after = (has_slot ? own->second : Holding()) + wanted;
    const Holding rest = holdings_.at(theirs) - scheduler_.HoldingOf(slot.own.slot_bytes());
    const bool last = rest.share() < kRounding;
    const bool lower = same ? slot.claim.part < claim_.part : slot.claim.client < claim_.client;
    if (lower && settled && !(last && has_slot)) return true;
    const bool outranks = sequence.priority() <= priority_;
    if ((outranks || !has_slot) && after.share() <= rest.share() + kRounding) return true;
    return outranks && !has_slot && next_.starts_anew() && settled &&
           now_ - slot.admitted >= scheduler_.options_.slice;
  }

  bool FitsPreempted(const Slot& slot) const { return scheduler_.BytesToKeep(slot) <= room_; }

  void Take(const Slot& slot) {
    for (const std::string* who : {&slot.sequence->client(), &slot.sequence->part()}) {
      Holding& of = holdings_.at(*who);
      of = of - scheduler_.HoldingOf(slot.own.slot_bytes());
    }
    const size_t bytes = scheduler_.BytesToKeep(slot);
    if (bytes <= room_) {
      room_ -= bytes;
    } else if (!slot.sequence->DropCost()) {
      droppable_ -= bytes - room_;
      room_ = 0;
    }
  }

  static constexpr int64_t kNotDropped = std::numeric_limits<int64_t>::max();
  // The sums of the same shares in another order differ by less.
  static constexpr double kRounding = 1e-9;

  const Scheduler& scheduler_;
  const Waiting& next_;
  const Clock::time_point now_;
  const bool drops_;  // whether states may be dropped, and memory taken
  Holdings holdings_;
  const int priority_;
  const int level_;
  const Shared<int> claim_;
  size_t room_;           // in preempted memory
  size_t droppable_ = 0;  // bytes of preempted states
  std::vector<Victim> victims_;
};

bool Scheduler::MakeRoom(Waiting* next, const Holdings& holdings, Clock::time_point now) {
  std::vector<size_t> victims = RoomMaker(*this, *next, holdings, now).Find(BytesNeeded(*next));
  if (victims.empty()) return false;
  states_.ReleasePreempted(std::exchange(next->preempted_bytes, 0));
  std::sort(victims.rbegin(), victims.rend());  // descending, so that indices stay valid
  for (const size_t i : victims) Preempt(i, next, now);
  return true;
}

Holding Scheduler::HoldingOf(size_t bytes) const {
  return {1.0 / options_.max_sequences,
          static_cast<double>(bytes) / static_cast<double>(std::max<size_t>(1, states_.limit()))};
}

Holdings Scheduler::FindHoldings() const {
  Holdings holdings;
  for (const Slot& slot : running_) {
    for (const std::string* who : {&slot.sequence->client(), &slot.sequence->part()}) {
      Holding& held = holdings[*who];
      held = held + HoldingOf(slot.own.slot_bytes());
    }
  }
  return holdings;
}

void Scheduler::Preempt(size_t index, const Waiting* next, Clock::time_point now) {
  Slot slot = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
  waiting_.OnServed(*slot.sequence, now);
  ++preemptions_;
  const size_t kept = BytesToKeep(slot);
  states_.Unreserve(slot.own.slot_bytes() - kept);
  slot.own.bytes = kept;
  waiting_.Add({.sequence = std::move(slot.sequence),
                .since = now,
                .own = std::move(slot.own),
                .forked_from = std::move(slot.forked_from),
                .preempted = true});
  Waiting* preempted = &*std::prev(waiting_.end());
  while (preempted->has_state() && !states_.MoveToPreempted(preempted->own.bytes)) {
    DropOne(preempted, next);
  }
  if (preempted->has_state()) preempted->preempted_bytes = preempted->own.bytes;
}

// `preempted`: the sequence whose state needs room in preempted memory. Drops its state or that of
// another sequence.
void Scheduler::DropOne(Waiting* preempted, const Waiting* next) {
  std::map<std::string_view, size_t> bytes;  // of clients and parts, in preempted memory
  for (Waiting& waiting : waiting_) {
    if (!waiting.has_state() || &waiting == next) continue;
    bytes[waiting.sequence->client()] += waiting.own.bytes;
    bytes[waiting.sequence->part()] += waiting.own.bytes;
  }
  Waiting* dropped = nullptr;
  const auto rank = [&](const Waiting& waiting) {
    return std::tuple(bytes.at(waiting.sequence->client()), bytes.at(waiting.sequence->part()),
                      -*waiting.sequence->DropCost());
  };
  for (Waiting& waiting : waiting_) {
    if (&waiting == next || !waiting.may_drop()) continue;
    if (dropped == nullptr || rank(waiting) > rank(*dropped)) dropped = &waiting;
  }
  PS_CHECK(dropped != nullptr);
  if (dropped == preempted) {
    states_.Unreserve(dropped->own.bytes);
  } else {
    states_.ReleasePreempted(std::exchange(dropped->preempted_bytes, 0));
  }
  states_.Release(std::move(dropped->own.state));
  dropped->own = {};
  dropped->source = dropped->forked_from.lock();
  // `next` may be about to take the source over.
  if (next != nullptr && dropped->source == next->source) dropped->source = nullptr;
  dropped->sequence->OnDropped(dropped->source != nullptr);
  ++dropped_states_;
  dropped_tokens_ += dropped->sequence->missing();
}

bool Scheduler::AssignSlot(WaitQueue::Iterator at, Clock::time_point now) {
  Slot slot{.sequence = nullptr,
            .own = {},
            .level = waiting_.Level(*at, now),
            .claim = waiting_.Claim(*at, now, FindHoldings()),
            .admitted = now,
            .last_served = now,
            .forked_from = at->source == nullptr ? at->forked_from : at->source,
            .missing = at->sequence->missing() > 0};
  const bool first = at->starts_anew();
  const size_t bytes = BytesNeeded(*at);
  if (at->has_state()) {
    states_.ReleasePreempted(std::exchange(at->preempted_bytes, 0));
    const bool room = states_.Reserve(bytes);
    PS_CHECK(room);
    slot.own = std::move(at->own);
    slot.own.bytes = bytes - slot.own.fork_bytes;
  } else if (at->takes_source()) {
    slot.own = {std::move(at->source->state), at->source->reserved};
  } else if (!StartState(&*at, &slot.own)) {
    return false;
  }
  slot.sequence = waiting_.Take(at).sequence;
  waiting_.OnServed(*slot.sequence, now);
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
  own->bytes = waiting->sequence->will_fork() ? bytes / 2 : bytes;
  own->fork_bytes = bytes - own->bytes;
  if (waiting->source != nullptr) {
    own->loader = std::make_unique<StateLoader>(waiting->source, own->state->parts());
  } else if (auto saved = waiting->sequence->Begin(); saved != nullptr) {
    // One of the prefix cache may be longer than the prompt until it is truncated.
    const size_t loaded = saved->copy == nullptr ? states_.BytesFor(saved->position) : 0;
    if (grows_ && loaded > own->bytes && states_.Reserve(loaded - own->bytes)) own->bytes = loaded;
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
    slot->forked_from = source;
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
