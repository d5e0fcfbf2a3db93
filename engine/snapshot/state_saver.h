// Saves a state part by part, so that steps can run between two parts: a copy of 48 MB takes ten
// milliseconds, or a hundred where its memory is touched for the first time. Blocks are shared, not
// copied.
#pragma once

#include <memory>

#include "base/check.h"
#include "base/thread_pool.h"
#include "engine/snapshot/snapshot.h"
#include "engine/snapshot/state_parts.h"
#include "kernels/backend.h"

namespace polysketch {

class StateSaver {
 public:
  // The memory of what is saved of the state: its own, and blocks of the state.
  static StateMemory MemoryFor(const SequenceState& state) {
    return state.shares() ? state.Memory() : StateMemory{state.SavedBytes()};
  }

  // `state` must not change until done().
  explicit StateSaver(const SequenceState& state)
      : saved_(std::make_shared<SavedState>()),
        copy_(state.shares() ? state.NewSharing() : nullptr),
        parts_(state.parts()) {
    saved_->position = state.position();
    if (copy_ == nullptr) saved_->bytes.resize(state.SavedBytes());
  }

  // Saves the next parts, one on each thread of `pool` (null: on this thread).
  void Continue(const SequenceState& state, ThreadPool* pool) {
    PS_CHECK(state.position() == saved_->position) << "the state has changed";
    parts_.RunNext(pool, [&](int part) {
      copy_ == nullptr ? state.SavePart(part, saved_->bytes) : copy_->CopyPart(part, state);
    });
    if (copy_ == nullptr || !done()) return;
    copy_->EndParts(state.position());
    saved_->copy_memory = copy_->Memory();
    saved_->copy = std::move(copy_);
  }
  bool started() const { return parts_.started(); }
  bool done() const { return parts_.done(); }
  // Requires done().
  std::shared_ptr<const SavedState> Take() { return std::move(saved_); }

 private:
  std::shared_ptr<SavedState> saved_;
  std::unique_ptr<SequenceState> copy_;  // null: the state is saved as bytes
  StateParts parts_;
};

}  // namespace polysketch
