#include "engine/grammar_source/code_points.h"

#include <algorithm>

namespace polysketch {
namespace {

constexpr char32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff, kLast = 0x10ffff;

}  // namespace

CodePoints::CodePoints(const std::vector<Range>& ranges) {
  std::vector<Range> cut;
  for (const Range& range : ranges) {
    if (range.first < kFirstSurrogate)
      cut.push_back({range.first, std::min<char32_t>(range.last, kFirstSurrogate - 1)});
    if (range.last > kLastSurrogate)
      cut.push_back({std::max<char32_t>(range.first, kLastSurrogate + 1), range.last});
  }
  std::erase_if(cut, [](const Range& range) { return range.first > range.last; });
  std::sort(cut.begin(), cut.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const Range& range : cut) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePoints::Contains(char32_t c) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                                      [](char32_t at, const Range& r) { return at < r.first; });
  return after != ranges_.begin() && c <= std::prev(after)->last;
}

CodePoints CodePoints::Complement() const {
  std::vector<Range> gaps;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) gaps.push_back({next, kLast});
  return CodePoints(gaps);
}

CodePoints operator|(const CodePoints& a, const CodePoints& b) {
  std::vector<CodePoints::Range> both = a.ranges_;
  both.insert(both.end(), b.ranges_.begin(), b.ranges_.end());
  return CodePoints(both);
}

}  // namespace polysketch
