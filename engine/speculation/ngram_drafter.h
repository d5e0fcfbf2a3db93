// Prompt lookup: what followed when the last tokens stood there before will follow again. Finds
// the most recent place with the same last four tokens, else the same last two, in constant time a
// token.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculation/drafter.h"

namespace polysketch {

class NgramDrafter : public Drafter {
 public:
  // Looks back over at least this many tokens, and at most twice as many.
  static constexpr int64_t kMemory = 1 << 17;

  void Append(std::span<const int32_t> tokens) override;
  std::vector<int32_t> Propose(int64_t most) override;

 private:
  static constexpr std::array<int, 2> kOrders = {4, 2};
  // One entry for each hash of n tokens: where the token behind their last place stands; 0: none.
  using Table = std::vector<int32_t>;

  int32_t* Entry(int order, int64_t end);
  // Remembers what follows the n-grams that end before token `next`.
  void Index(int64_t next);
  void Rebuild();
  // Where the token behind an earlier place with the same last `n` tokens stands; 0: nowhere.
  int64_t Find(int order);

  std::vector<int32_t> history_;
  std::array<Table, kOrders.size()> tables_;
};

}  // namespace polysketch
