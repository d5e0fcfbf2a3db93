#include "engine/prefix_cache/prefix_cache.h"

#include <algorithm>

#include "engine/sampler/random.h"

namespace polysketch {

uint64_t PrefixCache::Begin(const std::string& salt) {
  uint64_t hash = MixBits(salt.size() + 1);
  for (const char c : salt) hash = Extend(hash, static_cast<unsigned char>(c));
  return hash;
}

uint64_t PrefixCache::Extend(uint64_t hash, int32_t token) {
  return MixBits(hash + 0x9E3779B97F4A7C15u * (static_cast<uint32_t>(token) + uint64_t{1}));
}

PrefixCache::Place PrefixCache::Look(uint64_t hash, const std::string& salt,
                                     std::span<const int32_t> tokens) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto found = begin; found != end; ++found) {
    const Entry& entry = *found->second;
    if (entry.salt == salt &&
        std::equal(entry.tokens.begin(), entry.tokens.end(), tokens.begin(), tokens.end())) {
      return found->second;
    }
  }
  return entries_.end();
}

int64_t PrefixCache::Usable(const Entry& entry, const std::string& salt,
                            std::span<const int32_t> prompt) const {
  if (entry.salt != salt) return 0;
  const auto differs =
      std::mismatch(entry.tokens.begin(), entry.tokens.end(), prompt.begin(), prompt.end());
  const auto common = static_cast<int64_t>(differs.first - entry.tokens.begin());
  const int64_t usable = std::min(common, static_cast<int64_t>(prompt.size()) - 1);
  if (usable == entry.size()) return usable;
  // Of another prompt's state a few tokens are not worth the copy.
  const bool same_prompt = common == entry.size();
  const int64_t least = same_prompt ? 1 : options_.min_tokens;
  return usable >= std::max(entry.earliest_cut, least) ? usable : 0;
}

std::optional<PrefixCache::Hit> PrefixCache::Find(const std::string& salt,
                                                  std::span<const int32_t> prompt) {
  const auto size = static_cast<int64_t>(prompt.size());
  std::lock_guard lock(mutex_);
  stats_.queried_tokens += size;
  uint64_t hash = Begin(salt);
  int64_t hashed = 0;
  Place best = entries_.end();
  int64_t most = 0;
  for (const auto& [length, count] : lengths_) {
    if (length > size) break;
    for (; hashed < length; ++hashed) hash = Extend(hash, prompt[static_cast<size_t>(hashed)]);
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto found = begin; found != end; ++found) {
      const int64_t usable = Usable(*found->second, salt, prompt);
      if (usable <= most) continue;
      most = usable;
      best = found->second;
    }
  }
  if (most == 0) return std::nullopt;
  entries_.splice(entries_.end(), entries_, best);
  stats_.hit_tokens += most;
  return Hit{best->state, most};
}

bool PrefixCache::Touch(const std::string& salt, std::span<const int32_t> tokens) {
  uint64_t hash = Begin(salt);
  for (const int32_t token : tokens) hash = Extend(hash, token);
  std::lock_guard lock(mutex_);
  const Place place = Look(hash, salt, tokens);
  if (place == entries_.end()) return false;
  entries_.splice(entries_.end(), entries_, place);
  return true;
}

void PrefixCache::Insert(const std::string& salt, std::span<const int32_t> tokens,
                         std::shared_ptr<const SavedState> state, int64_t earliest_cut) {
  uint64_t hash = Begin(salt);
  for (const int32_t token : tokens) hash = Extend(hash, token);
  std::lock_guard lock(mutex_);
  if (Look(hash, salt, tokens) != entries_.end()) return;
  earliest_cut = std::max<int64_t>(1, earliest_cut);
  uint64_t cut_hash = Begin(salt);
  for (const int32_t token : tokens.first(static_cast<size_t>(earliest_cut))) {
    cut_hash = Extend(cut_hash, token);
  }
  entries_.push_back(
      {hash, cut_hash, salt, {tokens.begin(), tokens.end()}, std::move(state), earliest_cut});
  const Place place = std::prev(entries_.end());
  Index(place, hash, place->size());
  Index(place, cut_hash, earliest_cut);
  stats_.bytes += place->bytes();
  ++stats_.stored;
  Shrink();
}

void PrefixCache::Index(Place place, uint64_t hash, int64_t length) {
  by_hash_.emplace(hash, place);
  ++lengths_[length];
}

void PrefixCache::Unindex(Place place, uint64_t hash, int64_t length) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == place; }));
  const auto found = lengths_.find(length);
  if (--found->second == 0) lengths_.erase(found);
}

void PrefixCache::Remove(Place place) {
  Unindex(place, place->hash, place->size());
  Unindex(place, place->cut_hash, place->earliest_cut);
  stats_.bytes -= place->bytes();
  ++stats_.evicted;
  entries_.erase(place);
}

void PrefixCache::Shrink() {
  while (stats_.bytes > memory_) Remove(entries_.begin());
}

void PrefixCache::SetMemory(size_t bytes) {
  std::lock_guard lock(mutex_);
  memory_ = bytes;
  Shrink();
}

size_t PrefixCache::memory() const {
  std::lock_guard lock(mutex_);
  return memory_;
}

PrefixCacheStats PrefixCache::stats() const {
  std::lock_guard lock(mutex_);
  PrefixCacheStats stats = stats_;
  stats.entries = static_cast<int64_t>(entries_.size());
  return stats;
}

}  // namespace polysketch
