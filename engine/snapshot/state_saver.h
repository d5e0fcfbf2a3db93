// Saves a state part by part, so that steps can run between two parts: a copy of 48 MB takes ten
// milliseconds, or a hundred where its memory is touched for the first time.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "engine/snapshot/snapshot.h"
#include "kernels/backend.h"

namespace polysketch {

class StateSaver {
 public:
  // `state` must not change until done().
  explicit StateSaver(const SequenceState& state);

  // Saves the next parts, one on each thread of `pool` (null: on this thread).
  void Continue(const SequenceState& state, ThreadPool* pool);
  bool started() const { return next_ > 0; }
  bool done() const { return next_ == parts_; }
  // Requires done().
  std::shared_ptr<const SavedState> Take() { return std::move(saved_); }

 private:
  std::shared_ptr<SavedState> saved_;
  const int parts_;
  int next_ = 0;
};

}  // namespace polysketch
