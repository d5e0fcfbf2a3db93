// The bounded buffer of events between the engine thread (producer) and one reader (consumer).
//
// While the buffer is full, the sequence that fills it is idle: it takes part in no step until the
// reader catches up, or until the stall deadline ends it. Push never refuses an event, so the
// events of the step that fills the buffer may exceed the capacity, and the FinishEvent always
// fits.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "engine/request/clock.h"
#include "engine/request/events.h"

namespace polysketch {

class EventStream {
 public:
  // Full at `capacity` events (at least one). `now` is for tests.
  explicit EventStream(size_t capacity, std::function<Clock::time_point()> now = Clock::now)
      : capacity_(capacity > 0 ? capacity : 1), now_(std::move(now)) {}

  // Consumer. Pops the next event; false when the buffer is empty.
  bool TryPop(Event* event);
  // Consumer. `on_ready` is called by the engine thread, without locks held, whenever an event
  // arrives in an empty buffer. Set before Submit.
  void SetOnReady(std::function<void()> on_ready);

  // Producer.
  void Push(Event event);
  bool Full() const;
  // Producer. `on_drained` is called by the consumer's thread when a full buffer has room again.
  // Set by the engine.
  void SetOnDrained(std::function<void()> on_drained);
  // When the buffer last became full, or when its reader last took an event since; unset while the
  // buffer is not full. The stall deadline counts from here.
  std::optional<Clock::time_point> full_since() const;

 private:
  const size_t capacity_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  // Written under mutex_ before the first Push; called without holding it.
  std::function<void()> on_ready_;
  std::function<void()> on_drained_;
  std::deque<Event> events_;                     // guarded by mutex_
  std::optional<Clock::time_point> full_since_;  // guarded by mutex_
};

}  // namespace polysketch
