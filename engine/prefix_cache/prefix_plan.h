// What one prompt takes from the prefix cache, and what it leaves there. Engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/request/request.h"
#include "engine/snapshot/state_saver.h"

namespace polysketch {

class PrefixPlan {
 public:
  // cache: null for none, or for a sequence that has a past of its own. `salt`: whose prompt it is.
  // needs_rows: every row of the prompt is wanted, so that none of it can be taken. `size`: tokens
  // of the prompt that will be processed.
  PrefixPlan(PrefixCache* cache, const CacheParams& params, const std::string& salt,
             bool needs_rows, int64_t size);

  // Makes `state`, which is empty, the longest stored beginning; how many tokens that is.
  Result<int64_t> Begin(std::span<const int32_t> prompt, SequenceState* state);
  // Where the segment that begins at `processed`, and might run up to `end`, must end at the
  // latest.
  int64_t SegmentEnd(int64_t processed, int64_t end) const;
  // The state has moved on: begins to store it if this is one of the places.
  void OnState(std::span<const int32_t> prompt, const SequenceState& state);
  // A state is being stored: it must stay as it is, and Store be called, until this is over.
  bool storing() const { return saver_.has_value(); }
  // Stores the next parts of it, on the threads of `pool` (null: this one).
  void Store(std::span<const int32_t> prompt, const SequenceState& state, ThreadPool* pool);
  CacheMiss miss() const { return miss_; }

 private:
  PrefixCache* const cache_;
  const std::string salt_;
  const int64_t size_;
  bool read_ = false;
  std::vector<int64_t> points_;  // tokens behind which a state is stored, rising; at most size_
  CacheMiss miss_ = CacheMiss::kDisabled;
  std::optional<StateSaver> saver_;
};

}  // namespace polysketch
