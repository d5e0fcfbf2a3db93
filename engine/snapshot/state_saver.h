// Saves a state a part at a time, so that what else runs need not wait for all of it: the copy of
// 48 MB takes ten milliseconds, and a hundred where the host has yet to find the memory.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "engine/snapshot/snapshot.h"
#include "kernels/backend.h"

namespace polysketch {

class StateSaver {
 public:
  // Of a state that stays as it is until done().
  explicit StateSaver(const SequenceState& state);

  // Writes the next parts, one on each thread of `pool` (null: this one).
  void Continue(const SequenceState& state, ThreadPool* pool);
  bool begun() const { return next_ > 0; }
  bool done() const { return next_ == parts_; }
  // Once done.
  std::shared_ptr<const SavedState> Take() { return std::move(saved_); }

 private:
  std::shared_ptr<SavedState> saved_;
  const int parts_;
  int next_ = 0;
};

}  // namespace polysketch
