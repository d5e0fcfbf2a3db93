#include "engine/prefix_cache/prefix_tree.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace polysketch {
namespace {

// Whether the state of `a` serves more prompts than that of `b`.
bool Wider(const PrefixTree::Node* a, const PrefixTree::Node* b) {
  if (a == nullptr || b == nullptr) return a != nullptr;
  return std::tuple(a->earliest_truncation, a->end) < std::tuple(b->earliest_truncation, b->end);
}

}  // namespace

PrefixTree::Match PrefixTree::Find(const std::string& salt, std::span<const int32_t> tokens) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return {};
  Match match{root->second, 0};
  while (static_cast<size_t>(match.tokens) < tokens.size()) {
    const auto rest = tokens.subspan(static_cast<size_t>(match.tokens));
    const auto child = match.node->children.find(rest.front());
    if (child == match.node->children.end()) break;
    match.node = child->second;
    const std::vector<int32_t>& edge = match.node->tokens;
    const auto differs = std::mismatch(edge.begin(), edge.end(), rest.begin(), rest.end());
    match.tokens += differs.first - edge.begin();
    if (match.tokens < match.node->end) break;
  }
  return match;
}

size_t PrefixTree::BytesToExtend(const Match& match, int64_t size, const std::string& salt) {
  const bool cuts = match.node != nullptr && match.tokens < match.node->end;
  const auto rest = static_cast<size_t>(size - match.tokens);
  return (match.node == nullptr ? BytesOf(0) + salt.size() : 0) + (cuts ? BytesOf(0) : 0) +
         (rest > 0 ? BytesOf(rest) : 0);
}

PrefixTree::Extended PrefixTree::Extend(const Match& match, const std::string& salt,
                                        std::span<const int32_t> tokens) {
  Extended extended{match.node, {}};
  if (extended.end == nullptr) {
    extended.end = NewNode(nullptr, {});
    extended.end->salt = salt;
    roots_.emplace(salt, extended.end);
    extended.changed.push_back(extended.end);
  }
  if (match.tokens < extended.end->end) {
    Node* const lower = extended.end;
    extended.end = Split(lower, match.tokens);
    extended.changed.push_back(lower);
    extended.changed.push_back(extended.end);
  }
  if (match.tokens == std::ssize(tokens)) return extended;
  extended.end = NewNode(extended.end, tokens.subspan(static_cast<size_t>(match.tokens)));
  extended.changed.push_back(extended.end);
  return extended;
}

PrefixTree::Node* PrefixTree::NewNode(Node* parent, std::span<const int32_t> tokens) {
  Node* const node = &nodes_.emplace_back();
  node->self = std::prev(nodes_.end());
  node->tokens.assign(tokens.begin(), tokens.end());
  node->parent = parent;
  if (parent == nullptr) return node;
  node->end = parent->end + std::ssize(tokens);
  parent->children.emplace(tokens.front(), node);
  return node;
}

PrefixTree::Node* PrefixTree::Split(Node* node, int64_t position) {
  Node* const parent = node->parent;
  const auto upper_size = position - parent->end;
  const std::span<const int32_t> edge = node->tokens;
  parent->children.erase(edge.front());
  Node* const upper = NewNode(parent, edge.first(static_cast<size_t>(upper_size)));
  node->tokens = std::vector<int32_t>(edge.begin() + upper_size, edge.end());
  node->parent = upper;
  upper->children.emplace(node->tokens.front(), node);
  upper->states = node->states;
  upper->widest = node->widest;
  return upper;
}

void PrefixTree::Remove(Node* leaf) {
  PS_CHECK(leaf->leaf() && leaf->state == nullptr);
  Node* const parent = leaf->parent;
  parent == nullptr ? roots_.erase(leaf->salt) : parent->children.erase(leaf->tokens.front());
  nodes_.erase(leaf->self);
}

void PrefixTree::Store(Node* node, std::shared_ptr<const SavedState> state,
                       int64_t earliest_truncation) {
  PS_CHECK(node->state == nullptr && !node->root());
  node->state = std::move(state);
  node->earliest_truncation = std::max<int64_t>(1, earliest_truncation);
  for (Node* above = node; above != nullptr; above = above->parent) {
    ++above->states;
    if (Wider(node, above->widest)) above->widest = node;
  }
}

void PrefixTree::DropState(Node* node) {
  node->state = nullptr;
  for (Node* above = node; above != nullptr; above = above->parent) {
    --above->states;
    if (above->widest == node) FindWidest(above);
  }
}

void PrefixTree::FindWidest(Node* node) {
  node->widest = node->state == nullptr ? nullptr : node;
  for (const auto& [token, child] : node->children) {
    if (Wider(child->widest, node->widest)) node->widest = child->widest;
  }
}

}  // namespace polysketch
