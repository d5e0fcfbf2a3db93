// The sequences without a slot, and which of them is next.
//
// Between clients: first one that has no slot; then the one of the highest claim; then one whose
// next sequence had no slot yet; then the one that holds least; then the one with the least virtual
// time; then the earliest request. Between the parts of a client (base/principal.h) the same.
// Within a part: first a choice of a request that was admitted, which may hold memory for it; then
// the highest level; then the earliest request, of its choices one that has had a slot.
//
// A level is the priority of the request, plus one for every `aging` that it has waited. So every
// request of a client is served in the end, however many of a higher priority arrive.
//
// A claim is a level towards other clients, or other parts: time counts only while the client, or
// the part, has no slot. Otherwise the requests of a client that sends more than is served would
// all have waited long, and go before those of any other client.
//
// Who makes room for whom is in scheduler_admission.cc.
//
// Used by the engine thread only.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/turns.h"
#include "engine/scheduler/fork_source.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/state_loader.h"
#include "kernels/backend.h"

namespace polysketch {

// The state of a sequence and the slot memory that it needs.
struct SlotState {
  std::unique_ptr<SequenceState> state;
  size_t bytes = 0;                               // of the state
  size_t fork_bytes = 0;                          // of the ForkSource that the sequence will make
  std::unique_ptr<StateLoader> loader = nullptr;  // while the state is being loaded

  size_t slot_bytes() const { return bytes + fork_bytes; }
};

// A waiting or a preempted sequence. One with neither a state nor a source starts anew, or again:
// its state was dropped.
struct Waiting {
  std::unique_ptr<Sequence> sequence;
  Clock::time_point since;
  SlotState own = {};                            // of a preempted sequence that keeps its state
  size_t preempted_bytes = 0;                    // counted in StatePool::preempted
  std::shared_ptr<ForkSource> source = nullptr;  // of a fork
  std::weak_ptr<ForkSource> forked_from = {};    // of one that has had a slot
  bool preempted = false;

  bool has_state() const { return own.state != nullptr; }
  // Whether it has a state that can be dropped. That of a sequence that has ended is being saved.
  bool may_drop() const { return has_state() && !sequence->ended() && sequence->DropCost(); }
  bool starts_anew() const { return !sequence->admitted(); }
  // Whether it is one of several choices of a request that was admitted.
  bool of_choices() const { return source != nullptr || (preempted && sequence->slots() > 1); }
  // The last fork: its source becomes its state.
  bool takes_source() const { return source != nullptr && source.use_count() == 1; }
  // The last fork, while the states of others are still copied from the source: soon its own.
  bool awaits_source() const {
    return source != nullptr && source->readers > 0 && source.use_count() == source->readers + 1;
  }
};

// What a client holds: its share of the slots or of slot memory, whichever is larger (dominant
// resource: Ghodsi and others, 2011).
struct Holding {
  double slots = 0;   // of all slots
  double memory = 0;  // of all slot memory

  double share() const { return slots > memory ? slots : memory; }
  Holding operator+(const Holding& other) const {
    return {slots + other.slots, memory + other.memory};
  }
  Holding operator-(const Holding& other) const {
    return {slots - other.slots, memory - other.memory};
  }
};
using Holdings = std::map<std::string_view, Holding>;  // by client and by part; those with a slot

// One value towards other clients, and one towards other parts of the client.
template <typename T>
struct Shared {
  T client = {};
  T part = {};
};

class WaitQueue {
 public:
  using Iterator = std::list<Waiting>::iterator;

  explicit WaitQueue(std::chrono::nanoseconds aging) : aging_(aging) {}

  void Add(Waiting waiting) { list_.push_back(std::move(waiting)); }
  // Returns the next sequence that is neither idle nor ended, does not await its source, and that
  // `eligible` accepts; end() if there is none.
  Iterator Next(Clock::time_point now, const Turns& turns, const Holdings& holdings,
                const std::function<bool(const Waiting&)>& eligible);
  int Level(const Waiting& waiting, Clock::time_point now) const;
  Shared<int> Claim(const Waiting& waiting, Clock::time_point now, const Holdings& holdings) const;
  Waiting Take(Iterator at);
  // Called when the sequence gets or gives up a slot.
  void OnServed(const Sequence& sequence, Clock::time_point now);

  Iterator begin() { return list_.begin(); }
  Iterator end() { return list_.end(); }
  const std::list<Waiting>& list() const { return list_; }

 private:
  // The claim of `who`, a client or a part.
  int ClaimOf(const std::string& who, const Waiting& waiting, Clock::time_point now,
              const Holdings& holdings) const;

  const std::chrono::nanoseconds aging_;
  std::list<Waiting> list_;
  // When clients and parts with a waiting sequence last had a slot. Those without an entry had
  // none.
  std::map<std::string, Clock::time_point, std::less<>> served_;
};

// `priority`, plus one for every whole `aging` in `waited`.
int AgedLevel(int priority, std::chrono::nanoseconds waited, std::chrono::nanoseconds aging);

}  // namespace polysketch
