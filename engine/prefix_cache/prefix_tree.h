// A radix tree over the token ids of known prompts. A node is a place in a text: the tokens from
// the root to the node's end. Texts that begin alike share nodes up to where they part. A node may
// hold the state after its tokens.
//
// Each salt has a tree of its own, so that no text of one tenant is compared with that of another.
// A walk takes time in proportion to the text that is looked up. Nothing recurses: a client chooses
// the depth.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/principal.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

// What PrefixCache keeps of a node's place in the order of evictions.
struct PrefixUse {
  double inflation = 0;  // PrefixCache::inflation_ at the last use
  double priority = 0;
  uint64_t number = 0;  // of the last use; a unique one
};

class PrefixTree {
 public:
  struct Node {
    // Of the edge from the parent. The root has none.
    std::vector<int32_t> tokens;
    int64_t end = 0;  // number of tokens from the root to the end of the edge
    Node* parent = nullptr;
    std::map<int32_t, Node*> children;  // by the first token of their edges
    std::list<Node>::iterator self;
    std::string salt;  // of a root

    // The state after `end` tokens; null: none.
    std::shared_ptr<const SavedState> state;
    int64_t earliest_truncation = 0;  // of `state`, at least 1
    // Of the states in the subtree that begins here: their number, and the node of the one that
    // serves the most prompts. That is the one with the earliest truncation, and of such the
    // shortest.
    int64_t states = 0;
    Node* widest = nullptr;

    // The caller's.
    Principal principal;                              // holds the node and its state
    size_t counted_bytes = 0;                         // as the principal's, without blocks
    std::shared_ptr<const SavedState> counted_state;  // whose blocks are counted
    bool counted_as_text = false;
    bool saving = false;        // a state will be stored here
    size_t reserved_bytes = 0;  // for it
    PrefixUse use;
    std::list<Node*>::iterator text;  // valid if counted_as_text

    bool leaf() const { return children.empty(); }
    bool root() const { return parent == nullptr; }
    int64_t begin() const { return end - static_cast<int64_t>(tokens.size()); }
  };

  // How far a text is known.
  struct Match {
    Node* node = nullptr;  // on whose edge, or at whose end, the known tokens end; null: no root
    int64_t tokens = 0;    // known
  };

  Match Find(const std::string& salt, std::span<const int32_t> tokens) const;
  // Number of bytes that Extend takes after this match of a text of `size` tokens.
  static size_t BytesToExtend(const Match& match, int64_t size, const std::string& salt);

  struct Extended {
    Node* end = nullptr;         // whose end is that of the text
    std::vector<Node*> changed;  // nodes that were made or cut
  };
  // Makes `tokens` known. `match` is what Find returned for them. A node that is cut keeps its
  // address, its end and its state. The nodes that are made have no principal.
  Extended Extend(const Match& match, const std::string& salt, std::span<const int32_t> tokens);
  // Removes a leaf without a state.
  void Remove(Node* leaf);

  void Store(Node* node, std::shared_ptr<const SavedState> state, int64_t earliest_truncation);
  void DropState(Node* node);

  // Bytes of memory of a node without its state.
  static size_t BytesOf(const Node& node) { return BytesOf(node.tokens.size()) + node.salt.size(); }
  size_t size() const { return nodes_.size(); }

 private:
  // A node of an edge of `tokens` tokens, with the places that it takes in maps and lists.
  static constexpr size_t BytesOf(size_t tokens) {
    constexpr size_t kPlaces = 160;
    return sizeof(Node) + kPlaces + tokens * sizeof(int32_t);
  }
  Node* NewNode(Node* parent, std::span<const int32_t> tokens);
  // Cuts the edge of `node` after `position` tokens of the text. Returns the node that ends there.
  Node* Split(Node* node, int64_t position);
  static void FindWidest(Node* node);

  std::list<Node> nodes_;  // of all trees; they are destroyed without recursion
  std::map<std::string, Node*> roots_;
};

}  // namespace polysketch
