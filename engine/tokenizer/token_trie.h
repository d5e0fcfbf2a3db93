// Finds texts of a set in a longer text: added tokens of a tokenizer, as their vocabulary spells
// them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace polysketch {

class TokenTrie {
 public:
  // Adds a text, not empty. Of two equal texts the first counts.
  void Add(std::string_view text, int32_t id);
  bool empty() const { return ids_.empty(); }
  // Bytes of the longest text of the set.
  size_t max_bytes() const { return max_bytes_; }

  struct Found {
    int32_t id = -1;   // -1: none
    size_t bytes = 0;  // of the match
    // The text ends inside of a longer text of the set: what follows may match more.
    bool undecided = false;
  };
  // The longest text of the set that `text` begins with.
  Found At(std::string_view text) const;
  // Whether a text of the set begins with this byte.
  bool Begins(char byte) const { return begins_[static_cast<unsigned char>(byte)]; }

 private:
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node, byte) to node; the root is node 0
  std::unordered_map<uint32_t, int32_t> ids_;     // of the nodes that end a text
  std::array<bool, 256> begins_{};
  uint32_t nodes_ = 1;
  size_t max_bytes_ = 0;
};

}  // namespace polysketch
