// Regular expressions: what ECMA-262 and Python's `re` have in common. A text that a pattern of
// this parser matches is matched by both; where they differ (\w beyond ASCII, `.` before U+2028) a
// pattern holds what matches under either.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/grammar_source/code_points.h"

namespace polysketch {

struct Pattern {
  enum class Kind {
    kEmpty,     // the empty text
    kClass,     // one character of `set`
    kBegin,     // ^
    kEnd,       // $: the end of the text alone, not a place before a last line break
    kSequence,  // `parts` in order
    kChoice,    // one of `parts`
    kRepeat,    // parts[0], `min` to `max` times
  };
  Kind kind = Kind::kEmpty;
  CodePoints set = {};
  std::vector<Pattern> parts = {};
  int min = 0;
  int max = -1;  // < 0: without a bound

  bool HasAnchor() const;
};

// Groups within groups, and characters of a repetition's bounds.
inline constexpr int kMaxPatternDepth = 100;
inline constexpr int kMaxRepetitions = 10'000;

// INVALID_ARGUMENT says at which character what was expected, and names what is not supported:
// look-around, back-references, word boundaries, flags, Unicode properties, possessive repetitions,
// and what ECMA-262 reads as other characters: \A, \Z, \UXXXXXXXX, {,3}.
Result<Pattern> ParsePattern(std::string_view text);

// Characters of the texts that a pattern matches; max < 0: without a bound.
struct PatternLength {
  int64_t min = 0;
  int64_t max = 0;
};
PatternLength LengthOf(const Pattern& pattern);

// Whether `pattern` matches a part of `text`; anchors count.
bool FoundIn(const Pattern& pattern, std::u32string_view text);
// The characters of UTF-8.
std::u32string ToCodePoints(std::string_view text);

}  // namespace polysketch
