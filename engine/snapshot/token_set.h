// A set of token ids, one bit for each id of the vocabulary.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace polysketch {

class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(int vocab_size) : words_((static_cast<size_t>(vocab_size) + 63) / 64) {}

  // 0 <= token < vocab_size.
  void Insert(int32_t token) {
    words_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
  }
  // Calls fn for every id, in ascending order.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        fn(static_cast<int32_t>(i * 64 + static_cast<size_t>(std::countr_zero(rest))));
      }
    }
  }
  // Bit i of word w is id 64 w + i.
  const std::vector<uint64_t>& words() const { return words_; }
  static TokenSet FromWords(std::vector<uint64_t> words) {
    TokenSet set;
    set.words_ = std::move(words);
    return set;
  }
  bool operator==(const TokenSet&) const = default;

 private:
  std::vector<uint64_t> words_;
};

}  // namespace polysketch
