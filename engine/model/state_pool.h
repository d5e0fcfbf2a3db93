// The states of running sequences and the memory that they may take. Memory is reserved before a
// sequence's first token, so that none fails for want of it half way: a constant for recurrent
// kinds, the longest the request can get for KV kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/model.h"

namespace polysketch {

class StatePool {
 public:
  // `limit`: bytes for the states of running sequences; `preempted_limit`: for those of sequences that
  // gave up their slot for a while.
  StatePool(LanguageModel* model, size_t limit, size_t preempted_limit);

  // Before the first request; nothing for KV kinds. On a device: all the states that running and
  // parked sequences can hold, so that none is wanting later. On the host: one, since memory that
  // is touched for the first time can take longer than a step (3 to 130 ms for the 47 MB of a
  // model of 110 M parameters, measured).
  void Fill();
  // States that wait to be used.
  size_t free() const { return free_.size(); }

  // Whether a state grows with its tokens (a KV cache).
  bool growing() const { return growing_; }
  size_t limit() const { return limit_; }
  size_t reserved() const { return reserved_; }
  size_t BytesFor(int64_t tokens) const { return model_->StateBytes(tokens); }
  // The most tokens that fit in `bytes`; INT64_MAX / 2 when that has no bound, 0 when not one fits.
  int64_t TokensThatFit(size_t bytes) const;

  // Takes `bytes` more; false when they are not there.
  bool Reserve(size_t bytes);
  void Unreserve(size_t bytes);
  // Moves bytes to the parked ones; false when there is no room.
  bool MoveToPreempted(size_t bytes);
  void ReleasePreempted(size_t bytes);
  size_t preempted() const { return preempted_; }
  size_t preempted_limit() const { return preempted_limit_; }

  // An empty state; null when there is no memory for it now. States of constant size are kept and
  // used again.
  std::unique_ptr<SequenceState> Acquire();
  void Release(std::unique_ptr<SequenceState> state);

 private:
  LanguageModel* const model_;
  const size_t limit_;
  const size_t preempted_limit_;
  const bool growing_;
  size_t reserved_ = 0;
  size_t preempted_ = 0;
  std::vector<std::unique_ptr<SequenceState>> free_;
};

}  // namespace polysketch
