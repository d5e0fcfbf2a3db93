#include "engine/request/event_stream.h"

#include <utility>

namespace polysketch {

void EventStream::SetOnReady(std::function<void()> on_ready) {
  std::lock_guard lock(mutex_);
  on_ready_ = std::move(on_ready);
}

void EventStream::SetOnDrained(std::function<void()> on_drained) {
  std::lock_guard lock(mutex_);
  on_drained_ = std::move(on_drained);
}

bool EventStream::TryPop(Event* event) {
  bool drained = false;
  {
    std::lock_guard lock(mutex_);
    if (events_.empty()) return false;
    *event = std::move(events_.front());
    events_.pop_front();
    if (full_since_) {
      if (events_.size() < capacity_) {
        full_since_.reset();
        drained = true;
      } else {
        full_since_ = now_();  // still full, but the reader is alive
      }
    }
  }
  if (drained && on_drained_) on_drained_();
  return true;
}

void EventStream::Push(Event event) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = events_.empty();
    events_.push_back(std::move(event));
    if (!full_since_ && events_.size() >= capacity_) full_since_ = now_();
  }
  if (was_empty && on_ready_) on_ready_();
}

bool EventStream::Full() const {
  std::lock_guard lock(mutex_);
  return events_.size() >= capacity_;
}

std::optional<Clock::time_point> EventStream::full_since() const {
  std::lock_guard lock(mutex_);
  return full_since_;
}

}  // namespace polysketch
