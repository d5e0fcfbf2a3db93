// Saves a state part by part, so that steps can run between two parts: a copy of 48 MB takes ten
// milliseconds, or a hundred where its memory is touched for the first time.
#pragma once

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/thread_pool.h"
#include "engine/snapshot/snapshot.h"
#include "kernels/backend.h"

namespace polysketch {

class StateSaver {
 public:
  // `state` must not change until done().
  explicit StateSaver(const SequenceState& state)
      : saved_(std::make_shared<SavedState>()), parts_(state.parts()) {
    saved_->position = state.position();
    saved_->bytes.resize(state.SavedBytes());
  }

  // Saves the next parts, one on each thread of `pool` (null: on this thread).
  void Continue(const SequenceState& state, ThreadPool* pool) {
    PS_CHECK(state.position() == saved_->position) << "the state has changed";
    const int count = std::min(pool == nullptr ? 1 : pool->threads(), parts_ - next_);
    const auto save = [&](int64_t i, int /*thread*/) {
      state.SavePart(next_ + static_cast<int>(i), saved_->bytes);
    };
    if (pool == nullptr) {
      save(0, 0);
    } else {
      pool->ParallelFor(count, save);
    }
    next_ += count;
  }
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
