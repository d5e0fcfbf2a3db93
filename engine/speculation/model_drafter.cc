#include "engine/speculation/model_drafter.h"

#include <algorithm>
#include <utility>

namespace polysketch {

ModelDrafter::ModelDrafter(LanguageModel* model, StatePool* states, int64_t context_limit)
    : model_(model),
      states_(states),
      context_limit_(context_limit),
      hidden_(static_cast<size_t>(model->hidden_size())),
      logits_(static_cast<size_t>(model->vocab_size())) {}

void ModelDrafter::Append(std::span<const int32_t> tokens) {
  if (!gave_up_) unseen_.insert(unseen_.end(), tokens.begin(), tokens.end());
}

bool ModelDrafter::MakeRoom(int64_t tokens) {
  const int64_t seen = state_ == nullptr ? 0 : state_->position();
  if (context_limit_ > 0 && seen + tokens > context_limit_) return false;
  const size_t needed = states_->BytesFor(seen + tokens);
  if (needed > reserved_) {
    if (!states_->Reserve(needed - reserved_)) return false;
    reserved_ = needed;
  }
  if (state_ == nullptr) state_ = states_->Acquire();
  if (state_ == nullptr) ReleaseState();
  return state_ != nullptr;
}

void ModelDrafter::ReleaseState() {
  if (state_ != nullptr) states_->Release(std::move(state_));
  states_->Unreserve(std::exchange(reserved_, 0));
}

void ModelDrafter::Run(std::span<const int32_t> tokens) {
  model_->Step(OneSegment(state_.get(), tokens, OutputRows::kLast), hidden_.data());
}

int32_t ModelDrafter::MostLikely() {
  model_->Logits(hidden_.data(), 1, logits_.data());
  return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

std::vector<int32_t> ModelDrafter::Propose(int64_t max) {
  std::vector<int32_t> draft;
  if (unseen_.empty()) return draft;
  const size_t seen = std::min(unseen_.size(), static_cast<size_t>(model_->max_step_tokens()));
  if (!MakeRoom(static_cast<int64_t>(seen) + max)) {
    if (state_ == nullptr) return draft;  // a later call may find memory
    ReleaseState();
    gave_up_ = true;
    unseen_ = {};
    return draft;
  }
  Run(std::span(unseen_).first(seen));
  unseen_.erase(unseen_.begin(), unseen_.begin() + static_cast<ptrdiff_t>(seen));
  if (!unseen_.empty()) return draft;

  // The state is truncated to `certain` at the end.
  const int64_t certain = state_->position();
  const int64_t room = state_->Removable(certain);
  while (static_cast<int64_t>(draft.size()) < max) {
    draft.push_back(MostLikely());
    const auto drafted = static_cast<int64_t>(draft.size());
    if (drafted == max || drafted > room) break;
    Run({&draft.back(), 1});
  }
  state_->Truncate(certain);
  return draft;
}

}  // namespace polysketch
