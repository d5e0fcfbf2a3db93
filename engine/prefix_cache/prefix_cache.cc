#include "engine/prefix_cache/prefix_cache.h"

#include <algorithm>

#include "engine/sampler/random.h"

namespace polysketch {

uint64_t PrefixCache::Extend(uint64_t hash, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    hash = MixBits(hash + 0x9E3779B97F4A7C15u * (static_cast<uint32_t>(token) + uint64_t{1}));
  }
  return hash;
}

uint64_t PrefixCache::Hash(const std::string& salt, std::span<const int32_t> tokens) {
  const std::vector<int32_t> bytes(salt.begin(), salt.end());
  return Extend(Extend(MixBits(salt.size() + 1), bytes), tokens);
}

PrefixCache::Iterator PrefixCache::Lookup(uint64_t hash, const std::string& salt,
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
  // Few tokens of another prompt's state are not worth the copy.
  const bool same_prompt = common == entry.size();
  const int64_t min = std::max(entry.earliest_truncation, same_prompt ? 1 : options_.min_tokens);
  return usable >= min ? usable : 0;
}

std::optional<PrefixCache::Hit> PrefixCache::Find(const std::string& salt,
                                                  std::span<const int32_t> prompt) {
  std::lock_guard lock(mutex_);
  stats_.queried_tokens += std::ssize(prompt);
  uint64_t hash = Hash(salt, {});
  size_t hashed = 0;
  Iterator best = entries_.end();
  int64_t best_tokens = 0;
  for (const auto& [length, count] : lengths_) {
    if (length > std::ssize(prompt)) break;
    hash = Extend(hash, prompt.subspan(hashed, static_cast<size_t>(length) - hashed));
    hashed = static_cast<size_t>(length);
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto found = begin; found != end; ++found) {
      const int64_t usable = Usable(*found->second, salt, prompt);
      if (usable <= best_tokens) continue;
      best_tokens = usable;
      best = found->second;
    }
  }
  if (best_tokens == 0) return std::nullopt;
  entries_.splice(entries_.end(), entries_, best);
  stats_.hit_tokens += best_tokens;
  return Hit{best->state, best_tokens};
}

bool PrefixCache::Touch(const std::string& salt, std::span<const int32_t> tokens) {
  const uint64_t hash = Hash(salt, tokens);
  std::lock_guard lock(mutex_);
  const Iterator entry = Lookup(hash, salt, tokens);
  if (entry == entries_.end()) return false;
  entries_.splice(entries_.end(), entries_, entry);
  return true;
}

void PrefixCache::Insert(const std::string& salt, const Principal& principal,
                         std::span<const int32_t> tokens, std::shared_ptr<const SavedState> state,
                         int64_t earliest_truncation) {
  earliest_truncation = std::max<int64_t>(1, earliest_truncation);
  const uint64_t hash = Hash(salt, tokens);
  const uint64_t truncated = Hash(salt, tokens.first(static_cast<size_t>(earliest_truncation)));
  std::lock_guard lock(mutex_);
  if (Lookup(hash, salt, tokens) != entries_.end()) return;
  entries_.push_back({hash,
                      truncated,
                      salt,
                      principal,
                      {tokens.begin(), tokens.end()},
                      std::move(state),
                      earliest_truncation});
  const Iterator entry = std::prev(entries_.end());
  Index(entry, hash, entry->size());
  Index(entry, truncated, earliest_truncation);
  stats_.bytes += entry->bytes();
  held_.Add(principal, static_cast<int64_t>(entry->bytes()));
  ++stats_.stored;
  EvictOverLimit();
}

void PrefixCache::Index(Iterator entry, uint64_t hash, int64_t length) {
  by_hash_.emplace(hash, entry);
  ++lengths_[length];
}

void PrefixCache::Unindex(Iterator entry, uint64_t hash, int64_t length) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == entry; }));
  const auto found = lengths_.find(length);
  if (--found->second == 0) lengths_.erase(found);
}

void PrefixCache::Evict(Iterator entry) {
  Unindex(entry, entry->hash, entry->size());
  Unindex(entry, entry->truncated_hash, entry->earliest_truncation);
  stats_.bytes -= entry->bytes();
  held_.Remove(entry->principal, static_cast<int64_t>(entry->bytes()));
  ++stats_.evicted;
  entries_.erase(entry);
}

void PrefixCache::EvictOverLimit() {
  while (stats_.bytes > memory_) {
    Evict(std::find_if(entries_.begin(), entries_.end(), [this](const Entry& entry) {
      return held_.AboveEqual(entry.principal, static_cast<int64_t>(memory_));
    }));
  }
}

void PrefixCache::SetMemory(size_t bytes) {
  std::lock_guard lock(mutex_);
  memory_ = bytes;
  EvictOverLimit();
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
