// The parts of a state that is saved, loaded or copied (kernels/sequence_state.h), some at a time.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"

namespace polysketch {

class StateParts {
 public:
  explicit StateParts(int parts) : parts_(parts) {}

  // Calls run(part) for the next parts: one on each thread of `pool` (null: one, on this thread).
  template <typename Run>
  void RunNext(ThreadPool* pool, const Run& run) {
    const int first = next_;
    if (pool == nullptr) {
      run(next_++);
      return;
    }
    next_ += std::min(pool->threads(), parts_ - first);
    pool->ParallelFor(next_ - first,
                      [&](int64_t i, int /*thread*/) { run(first + static_cast<int>(i)); });
  }
  bool started() const { return next_ > 0; }
  bool done() const { return next_ == parts_; }

 private:
  const int parts_;
  int next_ = 0;
};

}  // namespace polysketch
