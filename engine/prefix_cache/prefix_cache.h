// States of texts that were processed before, by tenant and exact tokens, in a radix tree
// (prefix_tree.h). A new prompt starts from the state that provides the most of its tokens. Tokens
// are compared themselves, and a tenant finds its own states only.
//
// A state provides the tokens up to its end, and up to every point that it can be truncated to.
// States of KV kinds can be truncated to any token, so the longest text on a path serves all
// prompts that begin like it. States of recurrent kinds serve at their ends and within their last
// block. So states are stored where prompts are likely to begin alike (PrefixPlan), and the tree
// also knows texts without a state: from them the second prompt that shares a beginning learns
// where it parts from the first.
//
// Thread-safe. Memory is counted before it is taken: token ids, nodes, states that are being
// stored. A block of a KV cache that several states share counts once, and once for each principal
// that holds one of them. What is evicted is, of the states of a principal that holds more than an
// equal share, the one whose loss costs the least recomputation a byte, less for what has not been
// used for long (GreedyDual-Size: Cao and Irani, 1997). So one that stores much evicts its own
// states. Principals that share a tenant find each other's states, and yet each holds its own.
// Texts without a state have a small part of the memory, of which the least recently used are
// forgotten.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/shares.h"
#include "engine/prefix_cache/prefix_tree.h"
#include "engine/snapshot/block_ledger.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

struct PrefixCacheOptions {
  size_t memory = 0;         // bytes
  int64_t min_tokens = 256;  // a shorter prompt is processed faster than its state is copied
  int64_t every = 0;         // tokens between the states stored inside a prompt; 0: none inside
  // The time that a token's attention to one earlier token takes, over that of the rest of a token:
  // 0 where it does not grow with the text.
  double attention_cost = 0;
};

struct PrefixCacheStats {
  int64_t entries = 0;         // states
  size_t bytes = 0;            // of states, texts and nodes
  size_t text_bytes = 0;       // of them, of texts without a state
  int64_t queried_tokens = 0;  // of prompts that were looked up
  int64_t hit_tokens = 0;      // of the queried tokens, provided by a state
  int64_t stored = 0;          // states, since the start
  int64_t evicted = 0;         // to free memory
};

class PrefixCache {
 public:
  explicit PrefixCache(const PrefixCacheOptions& options)
      : options_(options), memory_(options.memory) {}

  // Changes the memory limit: sessions have priority in session memory.
  void SetMemory(size_t bytes);
  size_t memory() const;
  const PrefixCacheOptions& options() const { return options_; }
  // A state that saves fewer tokens than this, beside the states before it, is not worth its copy.
  int64_t min_gain() const { return std::min(kMinGain, options_.min_tokens); }

  struct Hit {
    std::shared_ptr<const SavedState> state;
    int64_t tokens = 0;  // length to which the caller truncates the state
  };
  // Returns the state that provides the longest prefix of `prompt`, of at most `max` tokens. `salt`
  // identifies the tenant, and within it those that share states. A truncated state of another
  // prompt counts only from min_tokens on.
  std::optional<Hit> Find(const std::string& salt, std::span<const int32_t> prompt, int64_t max);

  // Makes the text of a prompt known. Returns how many of its tokens were known before.
  int64_t Learn(const std::string& salt, const Principal& principal,
                std::span<const int32_t> prompt);

  // Room in the cache for a state that is being saved. Freed by Store or, without it, by the
  // destructor.
  class Room {
   public:
    Room(PrefixCache* cache, PrefixTree::Node* node) : cache_(cache), node_(node) {}
    Room(Room&& other) noexcept
        : cache_(std::exchange(other.cache_, nullptr)), node_(other.node_) {}
    Room& operator=(Room&&) = delete;
    ~Room() {
      if (cache_ != nullptr) cache_->Abandon(node_);
    }

   private:
    friend class PrefixCache;
    PrefixCache* cache_;
    PrefixTree::Node* node_;
  };
  // Makes room for the state of exactly `tokens`, which takes `memory` and which `principal` will
  // hold. nullopt if there is such a state, or one that provides them (which is used thereby), or
  // if one is being saved, or if what would be evicted is worth more.
  std::optional<Room> Reserve(const std::string& salt, const Principal& principal,
                              std::span<const int32_t> tokens, const StateMemory& memory);
  // Stores the state that the room is for. earliest_truncation is
  // SequenceState::EarliestTruncation. States of the same principal before it on its path, which it
  // provides too, are removed.
  void Store(Room room, std::shared_ptr<const SavedState> state, int64_t earliest_truncation);

  PrefixCacheStats stats() const;

 private:
  using Node = PrefixTree::Node;
  // States that are freed when the mutex is not held: freeing memory takes time.
  using Freed = std::list<std::shared_ptr<const SavedState>>;
  struct Before {
    bool operator()(const Node* a, const Node* b) const {
      return std::pair(a->use.priority, a->use.number) < std::pair(b->use.priority, b->use.number);
    }
  };

  static constexpr int64_t kMinGain = 32;
  // Of memory: the part of texts without a state.
  static constexpr size_t kTextPart = 32;

  void Abandon(Node* node);

  // The callers of the methods below hold mutex_.

  void EndSaving(Node* node);
  // The node whose state provides the first `tokens` tokens of a text that `node` lies on up to
  // `common` tokens; null: none.
  Node* Provider(Node* node, int64_t common, int64_t tokens) const;
  // Whether the state is found by other prompts when it is truncated to `tokens` tokens.
  bool Truncates(const Node& node, int64_t tokens) const {
    return node.earliest_truncation <= tokens && tokens >= options_.min_tokens;
  }
  // The time to process the tokens [begin, end) of a text, in units of a token without attention.
  double Cost(int64_t begin, int64_t end) const;
  // Number of tokens before the node's end that are provided without its state.
  int64_t ProvidedWithout(const Node& node) const;
  // By what the node's state frees when it is evicted.
  double Priority(const Node& node) const {
    const size_t bytes = node.state->own_bytes() + blocks_.BytesToRemove(node.state->blocks());
    return node.use.inflation +
           Cost(ProvidedWithout(node), node.end) / static_cast<double>(bytes + 1);
  }
  void Use(Node* node);
  void Rank(Node* node, double priority);

  // Counts the bytes of a node again.
  void Count(Node* node);
  void Uncount(Node* node);
  void CountChanged(const PrefixTree::Extended& extended, const Principal& principal);

  // Makes `bytes` free, for a principal and something of this priority. Returns false if that is
  // not possible or would evict what is worth more.
  bool MakeRoom(size_t bytes, const Principal& principal, double priority, Freed* freed);
  // The state to be evicted first. `shares`: only of principals above an equal share.
  Node* Lowest(bool shares);
  void Evict(Node* node, Freed* freed);
  // Forgets a text without a state. `shares`: only of principals above an equal share of such
  // texts.
  bool ForgetText(bool shares);
  // Forgets what exceeds the part of texts, as far as no state needs it.
  void ForgetTexts();
  void FitToMemory(Freed* freed);

  const PrefixCacheOptions options_;
  // All guarded by mutex_.
  mutable std::mutex mutex_;
  size_t memory_;
  PrefixTree tree_;
  std::set<Node*, Before> states_;  // with a state; the first is evicted first
  std::list<Node*> texts_;          // without a state; least recently used first
  BlockLedger blocks_;              // of all states
  std::map<Principal, BlockLedger> blocks_of_;
  Shares held_;           // bytes
  Shares texts_held_;     // of them, of texts_
  size_t reserved_ = 0;   // bytes of states that are being saved
  double inflation_ = 0;  // priority of the last state that was evicted
  uint64_t uses_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace polysketch
