// States of prompts that were processed before, by tenant and exact tokens. A new prompt starts
// from the longest entry that is a prefix of it. Entries are compared token by token, never by
// their hash alone, and a tenant finds its own entries only.
//
// A state can be truncated to any token of its last block, so an entry also serves prompts that
// agree with it up to a token of that block: the same prompt again (whose last token must be
// processed), or a prompt with another end. An entry serves no prompt that differs earlier, so
// states inside a prompt are stored too (PrefixPlan).
//
// Thread-safe. When the memory limit is exceeded, evicts the least recently used entry of a principal
// that holds more than an equal share. So one that stores much evicts its own entries. Principals that
// share a tenant find each other's entries, and yet each holds its own.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/shares.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

struct PrefixCacheOptions {
  size_t memory = 0;         // bytes
  int64_t min_tokens = 256;  // a shorter prompt is processed faster than its state is copied
  int64_t every = 0;         // tokens between the states stored inside a prompt; 0: none inside
};

struct PrefixCacheStats {
  int64_t entries = 0;
  size_t bytes = 0;
  int64_t queried_tokens = 0;  // of prompts that were looked up
  int64_t hit_tokens = 0;      // of the queried tokens, provided by an entry
  int64_t stored = 0;          // entries, since the start
  int64_t evicted = 0;
};

class PrefixCache {
 public:
  explicit PrefixCache(const PrefixCacheOptions& options)
      : options_(options), memory_(options.memory) {}

  // Changes the memory limit: sessions have priority in session memory.
  void SetMemory(size_t bytes);
  size_t memory() const;
  const PrefixCacheOptions& options() const { return options_; }

  struct Hit {
    std::shared_ptr<const SavedState> state;
    int64_t tokens = 0;  // length to which the caller truncates the state
  };
  // Returns the entry that provides the longest prefix of `prompt` without its last token. `salt`
  // identifies the tenant. A truncated entry of another prompt counts only from min_tokens on.
  std::optional<Hit> Find(const std::string& salt, std::span<const int32_t> prompt);
  // Returns whether an entry for exactly `tokens` exists, and counts the call as a use of it.
  bool Touch(const std::string& salt, std::span<const int32_t> tokens);
  // Stores `state`, the state of exactly `tokens`, unless an entry for them exists. `principal` holds
  // the entry. earliest_truncation is SequenceState::EarliestTruncation.
  void Insert(const std::string& salt, const Principal& principal, std::span<const int32_t> tokens,
              std::shared_ptr<const SavedState> state, int64_t earliest_truncation);

  PrefixCacheStats stats() const;

 private:
  struct Entry {
    uint64_t hash = 0;            // of all tokens
    uint64_t truncated_hash = 0;  // of the first earliest_truncation tokens
    std::string salt;
    Principal principal;
    std::vector<int32_t> tokens;
    std::shared_ptr<const SavedState> state;
    int64_t earliest_truncation = 0;  // at least 1

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    size_t bytes() const {
      return sizeof(*this) + tokens.size() * sizeof(int32_t) + state->bytes.size();
    }
  };
  using Iterator = std::list<Entry>::iterator;

  static uint64_t Extend(uint64_t hash, std::span<const int32_t> tokens);
  static uint64_t Hash(const std::string& salt, std::span<const int32_t> tokens);
  // Number of tokens of `prompt` that the entry provides.
  int64_t Usable(const Entry& entry, const std::string& salt,
                 std::span<const int32_t> prompt) const;
  // The callers of the methods below hold mutex_.
  Iterator Lookup(uint64_t hash, const std::string& salt, std::span<const int32_t> tokens);
  void Index(Iterator entry, uint64_t hash, int64_t length);
  void Unindex(Iterator entry, uint64_t hash, int64_t length);
  void Evict(Iterator entry);
  void EvictOverLimit();

  const PrefixCacheOptions options_;
  // All guarded by mutex_.
  mutable std::mutex mutex_;
  size_t memory_;
  std::list<Entry> entries_;  // least recently used first
  // Every entry twice: by all of its tokens, and by the fewest that it can be truncated to.
  std::unordered_multimap<uint64_t, Iterator> by_hash_;
  Shares held_;                         // bytes
  std::map<int64_t, int64_t> lengths_;  // length of hashed tokens -> number of hashes
  PrefixCacheStats stats_;
};

}  // namespace polysketch
