// Loads the state that a sequence starts from part by part, so that steps can run between two parts: a
// copy of 48 MB takes ten milliseconds.
//
// Used by the engine thread only.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/scheduler/fork_source.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class StateLoader {
 public:
  // A state from outside, of a session or of the prefix cache.
  explicit StateLoader(std::shared_ptr<const SavedState> saved) : saved_(std::move(saved)) {}
  // The state that the forks of a request share.
  explicit StateLoader(std::shared_ptr<ForkSource> source) : source_(std::move(source)) {
    ++source_->readers;
  }
  ~StateLoader() {
    if (source_ != nullptr) --source_->readers;
  }
  StateLoader(const StateLoader&) = delete;
  StateLoader& operator=(const StateLoader&) = delete;

  bool from_fork_source() const { return source_ != nullptr; }

  // Loads the next parts into `state`, one on each thread of `pool` (null: on this thread). The state
  // is of no use before done(), nor after an error: INVALID_ARGUMENT as SequenceState::Load.
  Status Continue(SequenceState* state, ThreadPool* pool) {
    PS_CHECK(!done_);
    if (saved_ != nullptr && next_ == 0) {
      PS_RETURN_IF_ERROR(state->CheckSavedSize(saved_->position, saved_->bytes.size()));
    }
    const int count = std::min(pool == nullptr ? 1 : pool->threads(), state->parts() - next_);
    std::vector<Status> statuses(static_cast<size_t>(count));
    const auto load = [&](int64_t i, int /*thread*/) {
      statuses[static_cast<size_t>(i)] = LoadPart(next_ + static_cast<int>(i), state);
    };
    if (pool == nullptr) {
      load(0, 0);
    } else {
      pool->ParallelFor(count, load);
    }
    for (Status& status : statuses) PS_RETURN_IF_ERROR(status);
    next_ += count;
    done_ = next_ == state->parts();
    if (done_) state->EndParts(saved_ != nullptr ? saved_->position : source_->state->position());
    return Status();
  }
  bool done() const { return done_; }

 private:
  Status LoadPart(int part, SequenceState* state) const {
    if (saved_ != nullptr) return state->LoadPart(part, saved_->position, saved_->bytes);
    state->CopyPart(part, *source_->state);
    return Status();
  }

  const std::shared_ptr<const SavedState> saved_;  // null: source_
  const std::shared_ptr<ForkSource> source_;
  int next_ = 0;
  bool done_ = false;
};

}  // namespace polysketch
