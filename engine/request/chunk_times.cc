#include "engine/request/chunk_times.h"

namespace polysketch {

static_assert(ChunkTimes::kMaxTimes % 2 == 0, "neighbours merge in pairs");

void ChunkTimes::Add(Clock::time_point start, Clock::time_point end, int64_t tokens) {
  if (times_.empty() || times_.back().chunks == chunks_per_time_) {
    if (times_.size() == kMaxTimes) MergeNeighbours();
    times_.push_back({.start = start, .end = end, .tokens = tokens, .chunks = 1});
    return;
  }
  ChunkTime& last = times_.back();
  last.end = end;
  last.tokens += tokens;
  ++last.chunks;
}

void ChunkTimes::MergeNeighbours() {
  for (size_t i = 0; i < times_.size() / 2; ++i) {
    const ChunkTime& first = times_[2 * i];
    const ChunkTime& second = times_[2 * i + 1];
    times_[i] = {.start = first.start,
                 .end = second.end,
                 .tokens = first.tokens + second.tokens,
                 .chunks = first.chunks + second.chunks};
  }
  times_.resize(times_.size() / 2);
  chunks_per_time_ *= 2;
}

}  // namespace polysketch
