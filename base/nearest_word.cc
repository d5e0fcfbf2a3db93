#include "base/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace polysketch {
namespace {

// Insertions, removals, replacements and swaps of neighbours that make one of the other.
size_t Edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] =
          std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

}  // namespace

std::string NearestWord(std::string_view word, const std::vector<std::string_view>& known) {
  constexpr size_t kMaxEdits = 2, kLongest = 40;
  std::string_view nearest;
  size_t least = kMaxEdits + 1;
  if (word.size() > kLongest) return "";
  for (const std::string_view other : known) {
    // Short words are near to many.
    const size_t most = other.size() < 3 ? 0 : other.size() < 6 ? 1 : kMaxEdits;
    if (std::max(word.size(), other.size()) > std::min(word.size(), other.size()) + most) continue;
    const size_t edits = Edits(word, other);
    if (edits > most || edits > least || (edits == least && other > nearest)) continue;
    least = edits;
    nearest = other;
  }
  return std::string(nearest);
}

}  // namespace polysketch
