#include "engine/request/request.h"

#include <algorithm>

#include "base/check.h"

namespace polysketch {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kStalled:
      return "stalled";
    case FinishReason::kError:
      return "error";
    case FinishReason::kMigrated:
      return "migrated";
  }
  return "unknown";
}

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
  // Set once, before events arrive: safe to call without the lock.
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

void TokenFeed::SetOnRoom(std::function<void()> on_room) {
  std::lock_guard lock(mutex_);
  on_room_ = std::move(on_room);
}

void TokenFeed::SetOnData(std::function<void()> on_data) {
  std::lock_guard lock(mutex_);
  on_data_ = std::move(on_data);
}

bool TokenFeed::Push(std::vector<int32_t> tokens) {
  bool room = true;
  std::function<void()>* on_data = nullptr;
  {
    std::lock_guard lock(mutex_);
    PS_CHECK(!closed_) << "Push after Close";
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    full_ = tokens_.size() >= capacity_;
    room = !full_;
    if (on_data_) on_data = &on_data_;
  }
  if (on_data && !tokens.empty()) (*on_data)();
  return room;
}

void TokenFeed::Close() {
  std::function<void()>* on_data = nullptr;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (on_data_) on_data = &on_data_;
  }
  if (on_data) (*on_data)();
}

size_t TokenFeed::Pull(size_t most, std::vector<int32_t>* out) {
  size_t count = 0;
  bool room = false;
  {
    std::lock_guard lock(mutex_);
    count = std::min(most, tokens_.size());
    out->insert(out->end(), tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(count));
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(count));
    if (full_ && tokens_.size() < capacity_) {
      full_ = false;
      room = true;
    }
  }
  if (room && on_room_) on_room_();
  return count;
}

size_t TokenFeed::available() const {
  std::lock_guard lock(mutex_);
  return tokens_.size();
}

bool TokenFeed::Exhausted() const {
  std::lock_guard lock(mutex_);
  return closed_ && tokens_.empty();
}

bool TokenFeed::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace polysketch
