#include "engine/prefix_cache/prefix_plan.h"

#include <algorithm>
#include <utility>

namespace polysketch {

PrefixPlan::PrefixPlan(PrefixCache* cache, const CacheParams& params, const std::string& salt,
                       const Principal& principal, int64_t size, int64_t max_provided)
    : cache_(cache), salt_(salt), principal_(principal), size_(size), max_provided_(max_provided) {
  if (cache_ == nullptr) return;
  read_ = params.read && max_provided > 0;
  if (read_) miss_ = CacheMiss::kNoPrefix;
  if (!params.write) return;
  for (const int64_t point : params.points) AddPoint(point, /*named=*/true);
  write_ = size_ >= min_tokens();
  if (!write_) return;
  AddPoint(size_, false);
  if (max_provided >= min_tokens()) AddPoint(max_provided, false);
  const int64_t every = cache_->options().every;
  for (int64_t point = every; every > 0 && point < size_; point += every) AddPoint(point, false);
}

void PrefixPlan::AddPoint(int64_t position, bool named) {
  if (position > size_) return;
  const auto at = std::ranges::lower_bound(points_, position, {}, &Point::position);
  if (at == points_.end() || at->position != position) {
    points_.insert(at, {position, named});
  } else {
    at->named |= named;
  }
}

std::vector<PrefixPlan::Point>::iterator PrefixPlan::PointAfter(int64_t position) {
  return std::ranges::upper_bound(points_, position, {}, &Point::position);
}

std::shared_ptr<const SavedState> PrefixPlan::Begin(std::span<const int32_t> prompt) {
  std::optional<PrefixCache::Hit> hit;
  if (read_) {
    hit = cache_->Find(salt_, prompt, std::min(max_provided_, std::ssize(prompt) - 1));
    if (hit) miss_ = CacheMiss::kNone;
    if (!hit && std::min(max_provided_ + 1, std::ssize(prompt)) < min_tokens())
      miss_ = CacheMiss::kTooShort;
  }
  provided_ = saved_ = hit ? hit->tokens : 0;
  if (write_) {
    const int64_t known =
        cache_->Learn(salt_, principal_, prompt.first(static_cast<size_t>(size_)));
    if (known >= min_tokens() && known < size_) AddPoint(known, false);
  }
  return hit ? hit->state : nullptr;
}

std::shared_ptr<const SavedState> PrefixPlan::BeginAgain(std::span<const int32_t> prompt,
                                                         int64_t processed) {
  if (!read_) return nullptr;
  const std::optional<PrefixCache::Hit> hit =
      cache_->Find(salt_, prompt, std::min(processed, std::ssize(prompt) - 1));
  if (!hit) return nullptr;
  provided_ = hit->tokens;
  return hit->state;
}

void PrefixPlan::OnLoaded(SequenceState* state) { state->Truncate(provided_); }

int64_t PrefixPlan::SegmentEnd(int64_t processed, int64_t end) const {
  const auto next = std::ranges::upper_bound(points_, processed, {}, &Point::position);
  return next == points_.end() ? end : next->position;
}

void PrefixPlan::OnState(std::span<const int32_t> prompt, const SequenceState& state) {
  const int64_t position = state.position();
  const auto next = PointAfter(position);
  if (next == points_.begin() || std::prev(next)->position != position) return;
  const bool named = std::prev(next)->named;
  if (!named && position - saved_ < cache_->min_gain()) return;
  // The state at the next point provides this position too, to prompts that share as much.
  if (next != points_.end() && position >= min_tokens() &&
      state.Removable(position) >= next->position - position) {
    next->named |= named;
    return;
  }
  Save(prompt.first(static_cast<size_t>(position)), state);
}

bool PrefixPlan::AwaitsEnd(int64_t position) const {
  return write_ && position > size_ && position - saved_ >= cache_->min_gain();
}

void PrefixPlan::OnEnd(std::span<const int32_t> tokens, const SequenceState& state) {
  write_ = false;
  Save(tokens, state);
}

void PrefixPlan::Save(std::span<const int32_t> tokens, const SequenceState& state) {
  std::optional<PrefixCache::Room> room =
      cache_->Reserve(salt_, principal_, tokens, StateSaver::MemoryFor(state));
  if (!room) return;
  room_.emplace(*std::move(room));
  saver_.emplace(state);
  saved_ = state.position();
}

void PrefixPlan::Store(const SequenceState& state, ThreadPool* pool) {
  saver_->Continue(state, pool);
  if (!saver_->done()) return;
  cache_->Store(*std::exchange(room_, std::nullopt), saver_->Take(), state.EarliestTruncation());
  saver_.reset();
}

}  // namespace polysketch
