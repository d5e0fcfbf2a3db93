// What one completion reads from the prefix cache, and what it stores in it: the states at the end
// of its prompt, where the prompt leaves a known text, at the positions that the request names,
// every N tokens, and at the end of its answer. A state that a later one provides, or that saves
// few tokens beside the one before it, is not stored.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <memory>
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
  // `cache` may be null: no cache. `salt`, `principal`: PrefixCache. `size`: number of tokens of
  // the prompt that will be processed. max_provided: maximum number of tokens that the cache may
  // provide; the rows of later tokens are needed. The state there is stored too.
  PrefixPlan(PrefixCache* cache, const CacheParams& params, const std::string& salt,
             const Principal& principal, int64_t size, int64_t max_provided);

  // Returns the state with the longest stored prefix of `prompt`; null without one.
  std::shared_ptr<const SavedState> Begin(std::span<const int32_t> prompt);
  // As Begin, for a prompt of which `processed` tokens were processed before. Neither max_provided
  // nor miss() count: no row of these tokens is needed again.
  std::shared_ptr<const SavedState> BeginAgain(std::span<const int32_t> prompt, int64_t processed);
  // Truncates the state that was returned to that prefix.
  void OnLoaded(SequenceState* state);
  // The latest position, at most `end`, at which a segment that begins at `processed` may end.
  int64_t SegmentEnd(int64_t processed, int64_t end) const;
  // Called after every change of the state. Starts to store the state if its position is one of the
  // positions to be stored.
  void OnState(std::span<const int32_t> prompt, const SequenceState& state);
  // Whether the state at the end of the answer, after `position` tokens, should be stored too. Once
  // it was tried, no longer.
  bool AwaitsEnd(int64_t position) const;
  // Starts to store the state at the end of the answer. `tokens`: all that are in it.
  void OnEnd(std::span<const int32_t> tokens, const SequenceState& state);
  // While a state is being stored, it must not change, and Store must be called.
  bool storing() const { return saver_.has_value(); }
  // Stores the next parts of the state, on the threads of `pool` (null: on this thread).
  void Store(const SequenceState& state, ThreadPool* pool);
  CacheMiss miss() const { return miss_; }

 private:
  struct Point {
    int64_t position = 0;
    bool named = false;  // by the request: stored whatever it saves
  };

  int64_t min_tokens() const { return cache_->options().min_tokens; }
  void AddPoint(int64_t position, bool named);
  std::vector<Point>::iterator PointAfter(int64_t position);
  void Save(std::span<const int32_t> tokens, const SequenceState& state);

  PrefixCache* const cache_;
  const std::string salt_;
  const Principal principal_;
  const int64_t size_;
  const int64_t max_provided_;
  bool read_ = false;
  bool write_ = false;         // also what the request does not name
  std::vector<Point> points_;  // whose states are stored, ascending; at most size_
  int64_t provided_ = 0;       // tokens of the prefix that was found
  int64_t saved_ = 0;          // tokens of the last state that was found or stored
  CacheMiss miss_ = CacheMiss::kDisabled;
  std::optional<PrefixCache::Room> room_;  // set with saver_
  std::optional<StateSaver> saver_;
};

}  // namespace polysketch
