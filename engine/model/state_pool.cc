#include "engine/model/state_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace polysketch {

// More tokens than any KV cache holds: 400 TB at the 100 KB a token of a small model.
constexpr int64_t kManyTokens = int64_t{1} << 32;

StatePool::StatePool(LanguageModel* model, size_t limit, size_t preempted_limit)
    : model_(model),
      limit_(limit),
      preempted_limit_(preempted_limit),
      kv_kind_(model->StateBytes(1) != model->StateBytes(kManyTokens)) {}

void StatePool::Fill() {
  if (kv_kind_) return;  // Engine::Create reserves the memory of KV caches
  const size_t max = MaxStates();
  const size_t states = model_->host_memory() ? std::min<size_t>(1, max) : max;
  while (free_.size() < states && model_->status().ok()) {
    std::unique_ptr<SequenceState> state = model_->NewState();
    if (state == nullptr) return;
    state->Clear();
    free_.push_back(std::move(state));
    ++states_;
  }
}

int64_t StatePool::TokensThatFit(size_t bytes) const {
  if (BytesFor(1) > bytes) return 0;
  if (!kv_kind_) return std::numeric_limits<int64_t>::max() / 2;
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
  if (kv_kind_) return model_->NewState();
  if (free_.empty()) TakeNext(/*wait=*/states_ >= MaxStates());
  std::unique_ptr<SequenceState> state;
  if (free_.empty()) {
    state = model_->NewState();
    if (state == nullptr) return state;
    ++states_;
  } else {
    state = std::move(free_.back());
    free_.pop_back();
  }
  MakeNext();
  return state;
}

// A busy machine may give that thread no processor for seconds, so a state is waited for only where
// no other one may be made.
void StatePool::TakeNext(bool wait) {
  if (!next_.valid()) return;
  const auto now = std::chrono::seconds(0);
  if (!wait && next_.wait_for(now) != std::future_status::ready) return;
  std::unique_ptr<SequenceState> state = next_.get();
  if (state == nullptr) {
    --states_;
  } else {
    free_.push_back(std::move(state));
  }
}

void StatePool::MakeNext() {
  TakeNext(/*wait=*/false);
  if (!model_->makes_states_beside_steps()) return;
  if (!free_.empty() || next_.valid() || states_ >= MaxStates()) return;
  ++states_;
  next_ = std::async(std::launch::async, [model = model_] {
    NameThread("ps-states");
    // Of this thread, on Linux: steps have the processors first.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
    std::unique_ptr<SequenceState> state = model->NewState();
    if (state != nullptr) state->Clear();
    return state;
  });
}

void StatePool::Release(std::unique_ptr<SequenceState> state) {
  if (kv_kind_) return;  // frees the state: its memory was reserved for this request
  state->Reset();
  free_.push_back(std::move(state));
}

}  // namespace polysketch
