#include "engine/tokenizer/token_trie.h"

#include <algorithm>

namespace polysketch {
namespace {

uint64_t Edge(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

void TokenTrie::Add(std::string_view text, int32_t id) {
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [edge, added] = edges_.try_emplace(Edge(node, byte), nodes_);
    if (added) ++nodes_;
    node = edge->second;
  }
  ids_.try_emplace(node, id);
  begins_[static_cast<unsigned char>(text.front())] = true;
  max_bytes_ = std::max(max_bytes_, text.size());
}

TokenTrie::Found TokenTrie::At(std::string_view text) const {
  Found found;
  if (text.empty() || !Begins(text.front())) return found;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(Edge(node, text[i]));
    if (edge == edges_.end()) return found;
    node = edge->second;
    if (const auto id = ids_.find(node); id != ids_.end()) {
      found.id = id->second;
      found.bytes = i + 1;
    }
  }
  // The text ended at `node`: it is undecided if the node has children.
  for (int byte = 0; byte < 256 && !found.undecided; ++byte)
    found.undecided = edges_.contains(Edge(node, static_cast<char>(byte)));
  return found;
}

}  // namespace polysketch
