// A store whose operations end in time for the caller, also if they hang: a folder on a network may
// answer no system call for ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "engine/store/state_store.h"

namespace polysketch {

// How long an operation may stay without moving (RunningWork): `wait`, and for a Put the time that
// its bytes take at `bytes_per_second`.
struct StoreDeadline {
  std::chrono::milliseconds wait{10'000};
  int64_t bytes_per_second = 10 << 20;
  int threads = 8;  // that start with the store: operations that run at once
};

// Operations that hang at most, each on a thread of its own. More get UNAVAILABLE at once.
inline constexpr int kMaxHungOfOwner = 4;
inline constexpr int kMaxHung = 64;

// Runs the operations of `store` on threads of its own. The caller of one that hangs gets
// UNAVAILABLE, or OutcomeUnknown if the operation has called RunningWork::BeginChange; without that
// it changes nothing any more. All later operations on the same entry get UNAVAILABLE at once until
// it ends, so that two writes of an entry never overtake each other. What the operation finds then
// is dropped. usage() is that of `store`. The destructor waits for no operation that hangs.
std::unique_ptr<StateStore> NewDeadlineStore(std::shared_ptr<StateStore> store,
                                             StoreDeadline deadline = {});

}  // namespace polysketch
