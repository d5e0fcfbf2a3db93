// How an op cuts its work for threads. Parts are outputs, or steps before them that share nothing,
// so cuts change no bit.
#pragma once

#include <algorithm>
#include <cstdint>

namespace polysketch::cpu {

// [first, last).
struct Range {
  int64_t first, last;

  int64_t size() const { return last - first; }
  bool empty() const { return first == last; }
};

// Part `index` of `count` parts of a piece of work.
struct Part {
  int64_t index, count;

  // This part of `whole`. Parts meet at multiples of `unit`; if these are few, some parts are
  // empty.
  Range Of(const Range& whole, int64_t unit) const {
    const int64_t begin = whole.first / unit, units = (whole.last + unit - 1) / unit - begin;
    const auto cut = [&](int64_t i) {
      return std::clamp((begin + units * i / count) * unit, whole.first, whole.last);
    };
    return {cut(index), cut(index + 1)};
  }
};

// Returns into how many parts, 1 to `units`, each of `items` pieces of work is cut, each piece of
// `units` equal units: the number with up to about four parts a thread that `threads` threads
// complete first. Pieces stay whole if no number is better, and are cut into most parts if several
// are best, since threads do not have equal speed.
inline int64_t PartsFor(int threads, int64_t items, int64_t units) {
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto time = [&](int64_t parts) {
    return quotient(items * parts, threads) * quotient(units, parts);
  };
  int64_t best = 1;
  for (int64_t parts = 2; parts <= std::min(units, quotient(4 * threads, items)); ++parts) {
    if (time(parts) < time(best) || (best > 1 && time(parts) == time(best))) best = parts;
  }
  return best;
}

}  // namespace polysketch::cpu
