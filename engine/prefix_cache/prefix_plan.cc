#include "engine/prefix_cache/prefix_plan.h"

#include <algorithm>

namespace polysketch {

PrefixPlan::PrefixPlan(PrefixCache* cache, const CacheParams& params, const std::string& salt,
                       const Principal& principal, int64_t size, int64_t max_provided)
    : cache_(cache), salt_(salt), principal_(principal), size_(size), max_provided_(max_provided) {
  if (cache_ == nullptr) return;
  const PrefixCacheOptions& options = cache_->options();
  read_ = params.read && max_provided > 0;
  if (read_) miss_ = CacheMiss::kNoPrefix;
  if (!params.write) return;
  for (const int64_t point : params.points) {
    if (point <= size_) points_.push_back(point);
  }
  if (size_ < options.min_tokens) return;
  points_.push_back(size_);
  if (max_provided >= options.min_tokens && max_provided < size_) points_.push_back(max_provided);
  for (int64_t point = options.every; options.every > 0 && point < size_; point += options.every) {
    points_.push_back(point);
  }
  std::sort(points_.begin(), points_.end());
  points_.erase(std::unique(points_.begin(), points_.end()), points_.end());
}

std::shared_ptr<const SavedState> PrefixPlan::Begin(std::span<const int32_t> prompt) {
  if (!read_) return nullptr;
  // Find provides all tokens but the last.
  if (std::ssize(prompt) > max_provided_)
    prompt = prompt.first(static_cast<size_t>(max_provided_) + 1);
  const std::optional<PrefixCache::Hit> hit = cache_->Find(salt_, prompt);
  if (!hit) {
    if (std::ssize(prompt) < cache_->options().min_tokens) miss_ = CacheMiss::kTooShort;
    return nullptr;
  }
  provided_ = hit->tokens;
  miss_ = CacheMiss::kNone;
  return hit->state;
}

std::shared_ptr<const SavedState> PrefixPlan::BeginAgain(std::span<const int32_t> prompt,
                                                         int64_t processed) {
  if (!read_) return nullptr;
  if (std::ssize(prompt) > processed) prompt = prompt.first(static_cast<size_t>(processed) + 1);
  const std::optional<PrefixCache::Hit> hit = cache_->Find(salt_, prompt);
  if (!hit) return nullptr;
  provided_ = hit->tokens;
  return hit->state;
}

void PrefixPlan::OnLoaded(SequenceState* state) { state->Truncate(provided_); }

int64_t PrefixPlan::SegmentEnd(int64_t processed, int64_t end) const {
  const auto next = std::upper_bound(points_.begin(), points_.end(), processed);
  return next == points_.end() ? end : *next;
}

void PrefixPlan::OnState(std::span<const int32_t> prompt, const SequenceState& state) {
  const int64_t position = state.position();
  if (!std::binary_search(points_.begin(), points_.end(), position)) return;
  const auto tokens = prompt.first(static_cast<size_t>(position));
  if (state.SavedBytes() > cache_->memory() || cache_->Touch(salt_, tokens)) return;
  saver_.emplace(state);
}

void PrefixPlan::Store(std::span<const int32_t> prompt, const SequenceState& state,
                       ThreadPool* pool) {
  const auto tokens = prompt.first(static_cast<size_t>(state.position()));
  // Another sequence with the same prompt may have stored it since OnState.
  if (!saver_->started() && cache_->Touch(salt_, tokens)) return saver_.reset();
  saver_->Continue(state, pool);
  if (!saver_->done()) return;
  cache_->Insert(salt_, principal_, tokens, saver_->Take(), state.EarliestTruncation());
  saver_.reset();
}

}  // namespace polysketch
