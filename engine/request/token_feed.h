// The input tokens of a score on their way to the engine. Bounded, so that a text of any length
// needs constant memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace polysketch {

class TokenFeed {
 public:
  // Full at `capacity` tokens (at least two: a score looks one token ahead).
  explicit TokenFeed(size_t capacity) : capacity_(capacity > 2 ? capacity : 2) {}

  // Producer. Appends; one call may exceed the capacity. Returns false when the feed is full now:
  // wait for on_room before the next Push.
  bool Push(std::vector<int32_t> tokens);
  // Producer. No more tokens follow.
  void Close();
  // Producer. `on_room` is called by the engine thread, without locks held, when a full feed has
  // room again. Set before Submit.
  void SetOnRoom(std::function<void()> on_room);

  // Engine thread. Appends up to `max` tokens to `out`; returns their number.
  size_t Pull(size_t max, std::vector<int32_t>* out);
  size_t available() const;
  // Whether the feed is closed and every token was pulled.
  bool Exhausted() const;
  bool closed() const;
  // `on_data` is called by the producer's thread when tokens arrive or the feed closes. Set by the
  // engine.
  void SetOnData(std::function<void()> on_data);

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::function<void()> on_room_;  // written under mutex_ before Submit, then only called
  std::function<void()> on_data_;  // written once, under mutex_, by Submit; then only called
  std::deque<int32_t> tokens_;     // guarded by mutex_
  bool closed_ = false;            // guarded by mutex_
  bool full_ = false;              // guarded by mutex_
};

}  // namespace polysketch
