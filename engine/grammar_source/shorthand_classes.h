// Classes of characters whose members depend on the dialect.
#pragma once

#include "engine/grammar_source/code_points.h"

namespace polysketch {

// `in`: members in ECMA-262 and in Python's `re`; `out`: members in neither. What is in one alone,
// or is in no table here, is in none of both.
struct TwoSided {
  CodePoints in;
  CodePoints out;

  static TwoSided Of(const CodePoints& set) { return {set, set.Complement()}; }
  TwoSided Negated() const { return {out, in}; }
  void Add(const TwoSided& other) {
    in = in | other.in;
    out = out & other.out;
  }
};

const TwoSided& DigitClass();  // \d
const TwoSided& WordClass();   // \w
const TwoSided& SpaceClass();  // \s
const TwoSided& LineClass();   // . : all but ends of lines

}  // namespace polysketch
