// Numbers of JSON within bounds, as EBNF.
#pragma once

#include <optional>

#include "engine/grammar_source/decimal.h"
#include "engine/grammar_source/ebnf.h"

namespace polysketch {

struct NumberRange {
  bool integer = false;
  std::optional<Bound> min;
  std::optional<Bound> max;
  int64_t multiple_of = 1;  // of integers
};

inline constexpr int64_t kMaxModulus = 1000;
// Multiples within bounds are listed.
inline constexpr int64_t kMaxMultiples = 1000;

// With bounds a number has no exponent, and no more digits than a double holds. Nullopt if no
// number is within the bounds, or more than kMaxMultiples multiples are.
std::optional<Ebnf> NumbersWithin(const NumberRange& range, EbnfRules* rules);

}  // namespace polysketch
