#include "engine/snapshot/state_saver.h"

#include <algorithm>

#include "base/check.h"

namespace polysketch {

StateSaver::StateSaver(const SequenceState& state)
    : saved_(std::make_shared<SavedState>()), parts_(state.saved_parts()) {
  saved_->position = state.position();
  saved_->bytes.resize(state.SavedBytes());
}

void StateSaver::Continue(const SequenceState& state, ThreadPool* pool) {
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

}  // namespace polysketch
