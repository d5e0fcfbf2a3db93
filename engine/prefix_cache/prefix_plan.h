// What one prompt takes from the prefix cache, and what it stores there.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/request/events.h"
#include "engine/request/request.h"
#include "engine/snapshot/state_saver.h"

namespace polysketch {

class PrefixPlan {
 public:
  // `cache` null: no cache. needs_rows: every row of the prompt is needed, so that none of its tokens
  // can be taken from the cache. `size`: tokens of the prompt that will be processed.
  PrefixPlan(PrefixCache* cache, const CacheParams& params, const std::string& salt,
             bool needs_rows, int64_t size);

  // Makes `state`, which is empty, the longest stored beginning. Returns its tokens.
  Result<int64_t> Begin(std::span<const int32_t> prompt, SequenceState* state);
  // Where a segment that begins at `processed` and ends at `end` or before must end at the latest.
  int64_t SegmentEnd(int64_t processed, int64_t end) const;
  // Follows every change of the state: starts to store it if its position is one to be stored.
  void OnState(std::span<const int32_t> prompt, const SequenceState& state);
  // A state is being stored: it must not change, and Store must be called, while this is true.
  bool storing() const { return saver_.has_value(); }
  // Stores the next parts of the state, on the threads of `pool` (null: on this thread).
  void Store(std::span<const int32_t> prompt, const SequenceState& state, ThreadPool* pool);
  CacheMiss miss() const { return miss_; }

 private:
  PrefixCache* const cache_;
  const std::string salt_;
  const int64_t size_;
  bool read_ = false;
  std::vector<int64_t> points_;  // positions whose states are stored, ascending; at most size_
  CacheMiss miss_ = CacheMiss::kDisabled;
  std::optional<StateSaver> saver_;
};

}  // namespace polysketch
