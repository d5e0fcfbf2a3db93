// Prompt lookup: proposes the tokens that followed the latest earlier occurrence of the last four
// tokens, or else of the last two. Constant time a token.
//
// Used by the engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculation/drafter.h"

namespace polysketch {

class NgramDrafter : public Drafter {
 public:
  // The last kMemory to 2 kMemory tokens are searched.
  static constexpr int64_t kMemory = 1 << 17;

  // The memory of a drafter after these tokens, at most.
  static int64_t MemoryBytes(int64_t tokens);

  void Append(std::span<const int32_t> tokens) override;
  std::vector<int32_t> Propose(int64_t max) override;

 private:
  static constexpr std::array<int, 2> kOrders = {4, 2};
  // An entry for each hash of n tokens: index of the token after their latest occurrence; 0: none.
  using Table = std::vector<int32_t>;

  // The entry of the n-gram that ends before index `end`.
  int32_t* Entry(int order, int64_t end);
  // Records that token `next` follows the n-grams before it.
  void Index(int64_t next);
  void Rebuild();
  // Index of the token after the latest earlier occurrence of the last n tokens; 0: none.
  int64_t Find(int order);

  std::vector<int32_t> history_;
  std::array<Table, kOrders.size()> tables_;
};

}  // namespace polysketch
