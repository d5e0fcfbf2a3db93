// Loads the state that a sequence starts from part by part, so that steps can run between two
// parts: a copy of 48 MB takes ten milliseconds, and the first touch of as much memory up to 130.
//
// Used by the engine thread only.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/scheduler/fork_source.h"
#include "engine/snapshot/snapshot.h"
#include "engine/snapshot/state_parts.h"

namespace polysketch {

class StateLoader {
 public:
  // Into a state of `parts` parts. A state from outside, of a session or of the prefix cache.
  StateLoader(std::shared_ptr<const SavedState> saved, int parts)
      : saved_(std::move(saved)), parts_(parts) {}
  // No state: clears a new one.
  explicit StateLoader(int parts) : parts_(parts) {}
  // The state that the forks of a request share.
  StateLoader(std::shared_ptr<ForkSource> source, int parts)
      : source_(std::move(source)), parts_(parts) {
    ++source_->readers;
  }
  ~StateLoader() {
    if (source_ != nullptr) --source_->readers;
  }
  StateLoader(const StateLoader&) = delete;
  StateLoader& operator=(const StateLoader&) = delete;

  // Whether a state from outside is loaded.
  bool from_outside() const { return saved_ != nullptr; }

  // Loads the next parts into `state`, one on each thread of `pool` (null: on this thread). The
  // state is of no use before done(), nor after an error: INVALID_ARGUMENT as SequenceState::Load.
  Status Continue(SequenceState* state, ThreadPool* pool) {
    PS_CHECK(!done());
    if (saved_ != nullptr && !parts_.started()) {
      // Of an engine with another backend or another format of states.
      if (saved_->copy != nullptr && !state->CanCopy(*saved_->copy)) saved_ = saved_->AsBytes();
      if (saved_->copy == nullptr)
        PS_RETURN_IF_ERROR(state->CheckSavedSize(saved_->position, saved_->bytes.size()));
    }
    std::vector<Status> statuses(static_cast<size_t>(state->parts()));
    parts_.RunNext(pool,
                   [&](int part) { statuses[static_cast<size_t>(part)] = LoadPart(part, state); });
    for (Status& status : statuses) PS_RETURN_IF_ERROR(status);
    if (done()) state->EndParts(position());
    return Status();
  }
  bool done() const { return parts_.done(); }

 private:
  int64_t position() const {
    if (saved_ != nullptr) return saved_->position;
    return source_ != nullptr ? source_->state->position() : 0;
  }
  Status LoadPart(int part, SequenceState* state) const {
    if (saved_ != nullptr && saved_->copy == nullptr)
      return state->LoadPart(part, saved_->position, saved_->bytes);
    const SequenceState* const from = saved_ != nullptr    ? saved_->copy.get()
                                      : source_ != nullptr ? source_->state.get()
                                                           : nullptr;
    from != nullptr ? state->CopyPart(part, *from) : state->ClearPart(part);
    return Status();
  }

  std::shared_ptr<const SavedState> saved_;   // null: source_
  const std::shared_ptr<ForkSource> source_;  // null too: the empty state
  StateParts parts_;
};

}  // namespace polysketch
