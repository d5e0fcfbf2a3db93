#include "engine/request/token_feed.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace polysketch {

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
  bool has_reader = false;  // Push may come before Submit, which sets on_data_
  {
    std::lock_guard lock(mutex_);
    PS_CHECK(!closed_) << "Push after Close";
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    full_ = tokens_.size() >= capacity_;
    room = !full_;
    has_reader = on_data_ != nullptr;
  }
  if (has_reader && !tokens.empty()) on_data_();
  return room;
}

void TokenFeed::Close() {
  bool has_reader = false;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    has_reader = on_data_ != nullptr;
  }
  if (has_reader) on_data_();
}

size_t TokenFeed::Pull(size_t max, std::vector<int32_t>* out) {
  size_t count = 0;
  bool room = false;
  {
    std::lock_guard lock(mutex_);
    count = std::min(max, tokens_.size());
    const auto end = tokens_.begin() + static_cast<ptrdiff_t>(count);
    out->insert(out->end(), tokens_.begin(), end);
    tokens_.erase(tokens_.begin(), end);
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
