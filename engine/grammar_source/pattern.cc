#include "engine/grammar_source/pattern.h"

#include <algorithm>
#include <string>

namespace polysketch {
namespace {

using Kind = Pattern::Kind;

// Bounds of lengths stay far from the limits of their type.
constexpr int64_t kMaxLength = int64_t{1} << 40;

// The ends of the matches of `pattern` in `text` that begin at a place of `from`.
std::vector<bool> Ends(const Pattern& pattern, std::u32string_view text, std::vector<bool> from) {
  const size_t places = text.size() + 1;
  std::vector<bool> ends(places);
  switch (pattern.kind) {
    case Kind::kEmpty:
      return from;
    case Kind::kClass:
      for (size_t i = 0; i < text.size(); ++i)
        ends[i + 1] = from[i] && pattern.set.Contains(text[i]);
      return ends;
    case Kind::kBegin:
      ends[0] = from[0];
      return ends;
    case Kind::kEnd:
      ends[text.size()] = from[text.size()];
      return ends;
    case Kind::kSequence:
      for (const Pattern& part : pattern.parts) from = Ends(part, text, std::move(from));
      return from;
    case Kind::kChoice:
      for (const Pattern& part : pattern.parts) {
        const std::vector<bool> of_part = Ends(part, text, from);
        for (size_t i = 0; i < places; ++i) ends[i] = ends[i] || of_part[i];
      }
      return ends;
    case Kind::kRepeat: {
      if (pattern.min == 0) ends = from;
      for (int i = 1; pattern.max < 0 || i <= pattern.max; ++i) {
        std::vector<bool> next = Ends(pattern.parts[0], text, from);
        bool more = false;
        for (size_t at = 0; at < places && i >= pattern.min; ++at) {
          more = more || (next[at] && !ends[at]);
          ends[at] = ends[at] || next[at];
        }
        // Later rounds reach nothing new, or all rounds are alike.
        if ((i >= pattern.min && !more) || next == from) {
          if (i < pattern.min) ends = next;
          break;
        }
        from = std::move(next);
      }
      return ends;
    }
  }
  return ends;
}

}  // namespace

bool Pattern::HasAnchor() const {
  return kind == Kind::kBegin || kind == Kind::kEnd ||
         std::any_of(parts.begin(), parts.end(),
                     [](const Pattern& part) { return part.HasAnchor(); });
}

PatternLength LengthOf(const Pattern& pattern) {
  PatternLength length;
  switch (pattern.kind) {
    case Kind::kEmpty:
    case Kind::kBegin:
    case Kind::kEnd:
      break;
    case Kind::kClass:
      length = {1, 1};
      break;
    case Kind::kSequence:
      for (const Pattern& part : pattern.parts) {
        const PatternLength of_part = LengthOf(part);
        length.min = std::min(length.min + of_part.min, kMaxLength);
        const bool bounded = length.max >= 0 && of_part.max >= 0;
        length.max = bounded ? std::min(length.max + of_part.max, kMaxLength) : -1;
      }
      break;
    case Kind::kChoice:
      length.min = kMaxLength;
      for (const Pattern& part : pattern.parts) {
        const PatternLength of_part = LengthOf(part);
        length.min = std::min(length.min, of_part.min);
        const bool bounded = length.max >= 0 && of_part.max >= 0;
        length.max = bounded ? std::max(length.max, of_part.max) : -1;
      }
      break;
    case Kind::kRepeat: {
      const PatternLength once = LengthOf(pattern.parts[0]);
      length.min = std::min(once.min * pattern.min, kMaxLength);
      const bool bounded = once.max == 0 || (pattern.max >= 0 && once.max >= 0);
      length.max = !bounded ? -1 : once.max == 0 ? 0 : std::min(once.max * pattern.max, kMaxLength);
      break;
    }
  }
  return length;
}

bool FoundIn(const Pattern& pattern, std::u32string_view text) {
  const std::vector<bool> ends = Ends(pattern, text, std::vector<bool>(text.size() + 1, true));
  return std::find(ends.begin(), ends.end(), true) != ends.end();
}

}  // namespace polysketch
