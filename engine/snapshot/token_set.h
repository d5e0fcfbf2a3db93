// A set of token ids as one bit each: what a penalty needs to know of a history of any length.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace polysketch {

class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(int vocab_size) : words_((static_cast<size_t>(vocab_size) + 63) / 64) {}

  // 0 <= token < vocab_size.
  void Insert(int32_t token) { words_[Word(token)] |= Bit(token); }
  void Insert(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) Insert(token);
  }
  void Insert(const TokenSet& other) {
    PS_CHECK(other.words_.size() == words_.size());
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  bool Contains(int32_t token) const { return (words_[Word(token)] & Bit(token)) != 0; }
  // In order.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        fn(static_cast<int32_t>(i * 64 + static_cast<size_t>(std::countr_zero(rest))));
      }
    }
  }
  // 64 ids each, the lowest in the lowest bit.
  const std::vector<uint64_t>& words() const { return words_; }
  static TokenSet FromWords(std::vector<uint64_t> words) {
    TokenSet set;
    set.words_ = std::move(words);
    return set;
  }
  bool operator==(const TokenSet&) const = default;

 private:
  static size_t Word(int32_t token) { return static_cast<size_t>(token) / 64; }
  static uint64_t Bit(int32_t token) { return uint64_t{1} << (token % 64); }

  std::vector<uint64_t> words_;
};

}  // namespace polysketch
