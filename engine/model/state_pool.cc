#include "engine/model/state_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace polysketch {

// More than any KV cache holds: at the 100 KB of a small model these are 400 TB.
constexpr int64_t kManyTokens = int64_t{1} << 32;

StatePool::StatePool(LanguageModel* model, size_t limit, size_t preempted_limit)
    : model_(model),
      limit_(limit),
      preempted_limit_(preempted_limit),
      growing_(model->StateBytes(1) != model->StateBytes(kManyTokens)) {}

void StatePool::Fill() {
  if (growing_) return;  // Engine::Create has tried whether the memory is there
  const size_t bytes = BytesFor(1);
  const size_t most = limit_ / bytes + preempted_limit_ / bytes;
  const size_t states = model_->states_at_start() ? most : std::min<size_t>(1, most);
  while (free_.size() < states && model_->status().ok()) {
    std::unique_ptr<SequenceState> state = model_->NewState();
    if (state == nullptr) return;
    free_.push_back(std::move(state));
  }
}

int64_t StatePool::TokensThatFit(size_t bytes) const {
  if (BytesFor(1) > bytes) return 0;
  if (!growing_) return std::numeric_limits<int64_t>::max() / 2;
  int64_t fits = 1;
  int64_t beyond = kManyTokens;
  while (beyond - fits > 1) {
    const int64_t middle = fits + (beyond - fits) / 2;
    (BytesFor(middle) <= bytes ? fits : beyond) = middle;
  }
  return fits;
}

bool StatePool::Reserve(size_t bytes) {
  if (bytes > limit_ - reserved_) return false;
  reserved_ += bytes;
  return true;
}

void StatePool::Unreserve(size_t bytes) {
  PS_CHECK(bytes <= reserved_) << "bytes=" << bytes << " reserved=" << reserved_;
  reserved_ -= bytes;
}

bool StatePool::MoveToPreempted(size_t bytes) {
  if (bytes > preempted_limit_ - preempted_) return false;
  preempted_ += bytes;
  Unreserve(bytes);
  return true;
}

void StatePool::ReleasePreempted(size_t bytes) {
  PS_CHECK(bytes <= preempted_) << "bytes=" << bytes << " preempted=" << preempted_;
  preempted_ -= bytes;
}

std::unique_ptr<SequenceState> StatePool::Acquire() {
  if (free_.empty()) return model_->NewState();
  std::unique_ptr<SequenceState> state = std::move(free_.back());
  free_.pop_back();
  return state;
}

void StatePool::Release(std::unique_ptr<SequenceState> state) {
  if (growing_) return;  // frees it: its memory was reserved for this request only
  state->Reset();
  free_.push_back(std::move(state));
}

}  // namespace polysketch
