// Mailbox: what other threads and the engine thread pass to each other. The engine shares it with
// the callbacks of streams and feeds, which may outlive the engine.
//
// Thread-safe. A function without "Locked" in its name locks the mutex.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/request/observer.h"
#include "engine/request/request.h"
#include "engine/scheduler/queue_places.h"
#include "engine/scheduler/retry_delay.h"
#include "engine/scheduler/sequence.h"

namespace polysketch {

struct Mailbox {
  // Work for the engine thread.
  struct Inbox {
    std::vector<std::unique_ptr<Sequence>> added;
    int64_t added_tokens = 0;  // input of `added`
    std::vector<RequestId> cancelled;
    std::map<RequestId, Status> given_up;  // their place: QueuePlaces
    std::optional<Status> end_all;
    bool migrate = false;
    bool stop = false;
  };

  explicit Mailbox(const QueuePlaces::Limits& limits) : places(limits) {}

  std::mutex mutex;
  std::condition_variable wake;  // the engine thread waits for `woken`
  std::condition_variable idle;  // Drain waits for unfinished == 0

  // All guarded by mutex.
  bool woken = false;
  Inbox inbox;
  bool draining = false;  // no new requests
  QueuePlaces places;     // of the requests that have not ended
  int64_t given_up = 0;   // requests whose place another client got, since the start
  bool working = false;   // the engine thread is not in Take
  int64_t turns = 0;      // of the engine thread: calls of Take
  int unfinished = 0;     // submitted requests whose FinishEvent was not pushed
  RetryDelay retry_delay;
  EngineStats stats;

  // Calls change(&inbox) and wakes the engine thread.
  template <typename Change>
  void Post(const Change& change) {
    std::lock_guard lock(mutex);
    change(&inbox);
    WakeLocked();
  }
  void Wake() {
    Post([](Inbox*) {});
  }
  // The caller holds the mutex.
  void WakeLocked() {
    woken = true;
    wake.notify_one();
  }

  // Engine thread. Waits until it is woken or until `deadline`, unless it is `busy`. Returns the
  // inbox and empties it.
  Inbox Take(bool busy, Clock::time_point deadline) {
    std::unique_lock lock(mutex);
    working = false;
    const auto is_woken = [this] { return woken; };
    if (busy) {
      // Does not wait.
    } else if (deadline == Clock::time_point::max()) {
      wake.wait(lock, is_woken);
    } else {
      wake.wait_until(lock, deadline, is_woken);
    }
    woken = false;
    working = true;
    ++turns;
    stats.waiting += static_cast<int>(inbox.added.size());
    stats.waiting_tokens += inbox.added_tokens;
    return std::exchange(inbox, Inbox());
  }
};

}  // namespace polysketch
