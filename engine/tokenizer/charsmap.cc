#include "engine/tokenizer/charsmap.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace polysketch {
namespace {

// Normalizer::kMaxTrieResultsSize: rules that begin at one position of a text and are prefixes of
// one another. SentencePiece keeps as many, and reads as many as it has found.
constexpr int kMaxRules = 32;

uint32_t LittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return value;
}

// A double array (darts-clone 0.32): unit `base ^ byte` of a node is its child by that byte if it
// has the label `byte`; unit `base` is the value of a node with a leaf.
class Trie {
 public:
  explicit Trie(std::string_view bytes) : bytes_(bytes), size_(bytes.size() / 4) {}

  size_t size() const { return size_; }
  bool has_leaf(size_t unit) const { return (At(unit) & 0x100) != 0; }
  // A unit with a value has a label above all bytes.
  uint32_t label(size_t unit) const { return At(unit) & 0x800000FF; }
  uint32_t value(size_t unit) const { return At(unit) & 0x7FFFFFFF; }
  size_t base(size_t unit) const {
    const uint32_t bits = At(unit);
    return unit ^ (size_t{bits >> 10} << ((bits & 0x200) >> 6));
  }

 private:
  uint32_t At(size_t unit) const { return LittleEndian(bytes_.substr(4 * unit)); }

  const std::string_view bytes_;
  const size_t size_;
};

// Visits every node that a text can reach.
Status CheckTrie(const Trie& trie, size_t replacements) {
  std::vector<int8_t> rules(trie.size(), -1);  // the most rules on a way to a unit; -1: none yet
  std::vector<size_t> nodes;                   // units whose children are to be visited
  const auto visit = [&](size_t unit, bool leaf, int before) -> Status {
    const size_t base = trie.base(unit);
    if ((base | 0xFF) >= trie.size()) {
      return InvalidArgument("unit ", unit, " of the trie: expected children below ", trie.size(),
                             ", found ", base | 0xFF);
    }
    if (leaf && trie.value(base) >= replacements) {
      return InvalidArgument("unit ", base, " of the trie: expected a value below ", replacements,
                             ", found ", trie.value(base));
    }
    const int now = before + (leaf ? 1 : 0);
    if (now > kMaxRules) {
      return InvalidArgument("expected at most ", kMaxRules,
                             " rules that are prefixes of one another, found more");
    }
    if (now <= rules[unit]) return Status();
    rules[unit] = static_cast<int8_t>(now);
    nodes.push_back(unit);
    return Status();
  };
  PS_RETURN_IF_ERROR(visit(0, /*leaf=*/false, 0));  // the root: a rule has a first byte
  while (!nodes.empty()) {
    const size_t node = nodes.back();
    nodes.pop_back();
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const size_t child = trie.base(node) ^ byte;
      if (trie.label(child) != byte) continue;
      PS_RETURN_IF_ERROR(visit(child, trie.has_leaf(child), rules[node]));
    }
  }
  return Status();
}

}  // namespace

Status CheckCharsmap(std::string_view bytes) {
  if (bytes.empty()) return Status();
  if (bytes.size() < 4) return InvalidArgument("expected 4 bytes or more, found ", bytes.size());
  const uint32_t size = LittleEndian(bytes);
  bytes.remove_prefix(4);
  if (size < 4 || size % 4 != 0 || size >= bytes.size()) {
    return InvalidArgument("expected a trie of some units of 4 bytes and then replacements in ",
                           bytes.size(), " bytes, found a trie of ", size, " bytes");
  }
  if (bytes.back() != '\0') return InvalidArgument("expected a zero at the end, found none");
  return CheckTrie(Trie(bytes.substr(0, size)), bytes.size() - size);
}

}  // namespace polysketch
