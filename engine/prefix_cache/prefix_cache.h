// States of prompts that were read before, by tenant and exact tokens: the longest one that begins
// a new prompt is where that starts. Entries are compared token by token, never by their hash
// alone, and a tenant finds its own only.
//
// A state can be cut back to any token of its last block (SequenceState::Cut), so one serves every
// prompt that goes along with it that far: the same prompt again (which needs a token to run), or
// one whose last words became other tokens. Further back it is of no use, so states inside a prompt
// are stored too, where the policy says.
//
// Thread-safe; least recently used by bytes.
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

#include "engine/snapshot/snapshot.h"

namespace polysketch {

struct PrefixCacheOptions {
  size_t memory = 0;         // bytes
  int64_t min_tokens = 256;  // shorter prompts are read again sooner than their state is copied
  int64_t every = 0;         // tokens between the states stored inside a prompt; 0: none
};

struct PrefixCacheStats {
  int64_t entries = 0;
  size_t bytes = 0;
  int64_t queried_tokens = 0;  // of prompts that asked
  int64_t hit_tokens = 0;      // of these, taken from a state
  int64_t stored = 0;          // entries
  int64_t evicted = 0;
};

class PrefixCache {
 public:
  explicit PrefixCache(const PrefixCacheOptions& options)
      : options_(options), memory_(options.memory) {}

  // Bytes from now on: sessions come first.
  void SetMemory(size_t bytes);
  size_t memory() const;
  const PrefixCacheOptions& options() const { return options_; }

  struct Hit {
    std::shared_ptr<const SavedState> state;
    int64_t tokens = 0;  // to be used: fewer than the state's are cut off it
  };
  // The longest stored beginning of `prompt` that leaves at least one token of it. A part of a
  // state counts from min_tokens on.
  std::optional<Hit> Find(const std::string& salt, std::span<const int32_t> prompt);
  // Whether it is stored; counts as a use.
  bool Touch(const std::string& salt, std::span<const int32_t> tokens);
  // `state`: behind exactly `tokens`. earliest_cut: SequenceState::EarliestTruncation of it.
  void Insert(const std::string& salt, std::span<const int32_t> tokens,
              std::shared_ptr<const SavedState> state, int64_t earliest_cut);

  PrefixCacheStats stats() const;

 private:
  struct Entry {
    uint64_t hash = 0;      // of all tokens
    uint64_t cut_hash = 0;  // of as many as it can be cut back to
    std::string salt;
    std::vector<int32_t> tokens;
    std::shared_ptr<const SavedState> state;
    int64_t earliest_cut = 0;  // at least 1

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    size_t bytes() const {
      return sizeof(*this) + tokens.size() * sizeof(int32_t) + state->bytes.size();
    }
  };
  using Place = std::list<Entry>::iterator;

  static uint64_t Begin(const std::string& salt);
  static uint64_t Extend(uint64_t hash, int32_t token);
  // Tokens of `prompt` that the entry can give; 0 for none.
  int64_t Usable(const Entry& entry, const std::string& salt,
                 std::span<const int32_t> prompt) const;
  // All guarded by mutex_.
  Place Look(uint64_t hash, const std::string& salt, std::span<const int32_t> tokens);
  void Index(Place place, uint64_t hash, int64_t length);
  void Unindex(Place place, uint64_t hash, int64_t length);
  void Remove(Place place);
  void Shrink();

  const PrefixCacheOptions options_;
  mutable std::mutex mutex_;
  size_t memory_;
  std::list<Entry> entries_;  // least recently used first
  // Every entry twice: by all of its tokens, and by those that it can be cut back to.
  std::unordered_multimap<uint64_t, Place> by_hash_;
  std::map<int64_t, int64_t> lengths_;  // of what is hashed there -> how many
  PrefixCacheStats stats_;
};

}  // namespace polysketch
