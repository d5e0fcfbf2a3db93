// The sequences without a slot, and which of them is next: a fork before others, since its request
// was admitted and holds memory for it; then the client of the highest claim; then the client with
// the least virtual time; then, of that client, the highest level; then the earliest request.
//
// A level is the priority of the request, plus one for every `aging` that it has waited. So every
// request is served in the end, however many requests of a higher priority arrive.
//
// A claim is a level towards other clients: time counts only since the client last got a slot.
// Otherwise the requests of a client that sends more than is served would all have waited long, and
// go before those of any other client.
//
// Used by the engine thread only.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "engine/scheduler/client_shares.h"
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
  // Null while the state is being loaded.
  const SequenceState* loaded_state() const { return loader == nullptr ? state.get() : nullptr; }
};

// A waiting or a preempted sequence. A sequence with neither a state nor a source starts anew.
struct Waiting {
  std::unique_ptr<Sequence> sequence;
  Clock::time_point since;
  SlotState own = {};                            // of a preempted sequence
  size_t preempted_bytes = 0;                    // counted in StatePool::preempted
  std::shared_ptr<ForkSource> source = nullptr;  // of a fork

  bool preempted() const { return own.state != nullptr; }
  bool starts_anew() const { return own.state == nullptr && source == nullptr; }
  // The last fork: its source becomes its state.
  bool takes_source() const { return source != nullptr && source.use_count() == 1; }
  // The last fork, while the states of others are still copied from the source: soon its own.
  bool awaits_source() const {
    return source != nullptr && source->readers > 0 && source.use_count() == source->readers + 1;
  }
  bool will_fork() const { return source == nullptr && sequence->slots() > 1; }
};

class WaitQueue {
 public:
  using Iterator = std::list<Waiting>::iterator;

  explicit WaitQueue(std::chrono::nanoseconds aging) : aging_(aging) {}

  void Add(Waiting waiting) { list_.push_back(std::move(waiting)); }
  // Returns the next sequence that is neither idle nor ended, does not await its source, and that
  // `eligible` accepts; end() if there is none.
  Iterator Next(Clock::time_point now, const ClientShares& shares,
                const std::function<bool(const Waiting&)>& eligible);
  int Level(const Waiting& waiting, Clock::time_point now) const;
  int Claim(const Waiting& waiting, Clock::time_point now) const;
  Waiting Take(Iterator at);
  // Takes the sequence, whose client gets a slot.
  Waiting TakeForSlot(Iterator at, Clock::time_point now);

  Iterator begin() { return list_.begin(); }
  Iterator end() { return list_.end(); }
  const std::list<Waiting>& list() const { return list_; }

 private:
  const std::chrono::nanoseconds aging_;
  std::list<Waiting> list_;
  // When clients with a waiting sequence last got a slot. A client without an entry got none.
  std::map<std::string, Clock::time_point, std::less<>> served_;
};

// `priority`, plus one for every whole `aging` in `waited`.
int AgedLevel(int priority, std::chrono::nanoseconds waited, std::chrono::nanoseconds aging);

}  // namespace polysketch
