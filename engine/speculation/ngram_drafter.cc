#include "engine/speculation/ngram_drafter.h"

#include <algorithm>
#include <bit>

#include "engine/sampler/random.h"

namespace polysketch {

constexpr size_t kMinTable = 1 << 10;

int64_t NgramDrafter::MemoryBytes(int64_t tokens) {
  // Of the history: a vector that doubles.
  const auto kept = static_cast<size_t>(std::min(tokens, 2 * kMemory));
  const size_t entries = std::bit_ceil(std::max(kMinTable, 4 * kept));
  return static_cast<int64_t>((2 * kept + kOrders.size() * entries) * sizeof(int32_t));
}

int32_t* NgramDrafter::Entry(int order, int64_t end) {
  uint64_t hash = 0;
  for (int64_t i = end - kOrders[static_cast<size_t>(order)]; i < end; ++i) {
    hash = MixBits(hash + static_cast<uint64_t>(history_[static_cast<size_t>(i)]) + 1);
  }
  Table& table = tables_[static_cast<size_t>(order)];
  return &table[hash & (table.size() - 1)];
}

void NgramDrafter::Index(int64_t next) {
  for (size_t order = 0; order < kOrders.size(); ++order) {
    if (next >= kOrders[order]) {
      *Entry(static_cast<int>(order), next) = static_cast<int32_t>(next);
    }
  }
}

void NgramDrafter::Rebuild() {
  const auto size = static_cast<int64_t>(history_.size());
  if (size > 2 * kMemory) history_.erase(history_.begin(), history_.end() - kMemory);
  const size_t entries = std::bit_ceil(std::max(kMinTable, 4 * history_.size()));
  for (Table& table : tables_) table.assign(entries, 0);
  for (int64_t next = 1; next < static_cast<int64_t>(history_.size()); ++next) Index(next);
}

void NgramDrafter::Append(std::span<const int32_t> tokens) {
  // Only the end of a long prompt is kept.
  if (tokens.size() > kMemory) tokens = tokens.last(kMemory);
  for (const int32_t token : tokens) {
    history_.push_back(token);
    if (2 * history_.size() > tables_[0].size() ||
        history_.size() > static_cast<size_t>(2 * kMemory)) {
      Rebuild();
    } else {
      Index(static_cast<int64_t>(history_.size()) - 1);
    }
  }
}

int64_t NgramDrafter::Find(int order) {
  const int n = kOrders[static_cast<size_t>(order)];
  const auto size = static_cast<int64_t>(history_.size());
  if (size <= n) return 0;
  const int64_t next = *Entry(order, size);
  if (next == 0) return 0;
  // Different n-grams may share an entry.
  const bool same = std::equal(history_.end() - n, history_.end(), history_.begin() + next - n);
  return same ? next : 0;
}

std::vector<int32_t> NgramDrafter::Propose(int64_t max) {
  std::vector<int32_t> draft;
  int64_t next = 0;
  for (size_t order = 0; order < kOrders.size() && next == 0; ++order) {
    next = Find(static_cast<int>(order));
  }
  if (next == 0) return draft;
  // An occurrence near the end overlaps the draft, which then repeats its period.
  const int64_t period = static_cast<int64_t>(history_.size()) - next;
  for (int64_t i = 0; i < max; ++i) {
    draft.push_back(i < period ? history_[static_cast<size_t>(next + i)]
                               : draft[static_cast<size_t>(i - period)]);
  }
  return draft;
}

}  // namespace polysketch
