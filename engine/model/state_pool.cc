#include "engine/model/state_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/start_thread.h"
#include "base/thread_name.h"

namespace polysketch {

// More tokens than any KV cache holds: 400 TB at the 100 KB a token of a small model.
constexpr int64_t kManyTokens = int64_t{1} << 32;

StateMaker::StateMaker(LanguageModel* model)
    : model_(model), thread_(StartThread([this] { Loop(); })) {}

StateMaker::~StateMaker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StateMaker::Make() {
  busy_ = true;
  {
    std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_all();
}

std::optional<std::unique_ptr<SequenceState>> StateMaker::Take(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [this] { return made_.has_value(); });
  std::optional<std::unique_ptr<SequenceState>> state = std::move(made_);
  made_.reset();
  busy_ = !state.has_value();
  return state;
}

void StateMaker::Loop() {
  NameThread("ps-states");
  // Of this thread, on Linux: steps have the processors first.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return wanted_ || stop_; });
    if (stop_) return;
    wanted_ = false;
    lock.unlock();
    std::unique_ptr<SequenceState> state = model_->NewState();
    if (state != nullptr) state->Clear();
    lock.lock();
    made_ = std::move(state);
    changed_.notify_all();
  }
}

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
  if (model_->makes_states_beside_steps()) maker_ = std::make_unique<StateMaker>(model_);
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
  if (maker_ == nullptr || !maker_->busy()) return;
  std::optional<std::unique_ptr<SequenceState>> state = maker_->Take(wait);
  if (!state.has_value()) return;
  if (*state == nullptr) {
    --states_;
  } else {
    free_.push_back(*std::move(state));
  }
}

void StatePool::MakeNext() {
  TakeNext(/*wait=*/false);
  if (maker_ == nullptr || maker_->busy() || !free_.empty() || states_ >= MaxStates()) return;
  ++states_;
  maker_->Make();
}

void StatePool::Release(std::unique_ptr<SequenceState> state) {
  if (kv_kind_) return;  // frees the state: its memory was reserved for this request
  state->Reset();
  free_.push_back(std::move(state));
}

}  // namespace polysketch
