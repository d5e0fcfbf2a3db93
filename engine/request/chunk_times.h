// When the chunks of a prompt were processed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/request/clock.h"

namespace polysketch {

// One chunk, or several consecutive ones from the start of the first to the end of the last.
struct ChunkTime {
  Clock::time_point start;
  Clock::time_point end;
  int64_t tokens = 0;
  int64_t chunks = 0;
};

// The times of any number of chunks in at most kMaxTimes elements: when these are full, neighbours
// merge, so that every element but the last stands for the same number of chunks.
class ChunkTimes {
 public:
  static constexpr size_t kMaxTimes = 32;

  void Add(Clock::time_point start, Clock::time_point end, int64_t tokens);
  const std::vector<ChunkTime>& times() const { return times_; }

 private:
  void MergeNeighbours();

  std::vector<ChunkTime> times_;
  int64_t chunks_per_time_ = 1;
};

}  // namespace polysketch
