// Patterns as EBNF.
#pragma once

#include "base/status.h"
#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/pattern.h"

namespace polysketch {

// How the characters of a matched text are written.
enum class TextForm {
  kPlain,
  kJson,  // within the quotes of a JSON string, with escapes where JSON needs them
};

// The characters that a JSON string has as themselves.
const CodePoints& PlainInJson();
// The rest of a JSON string after its first quote: at least `min` characters, in each of their
// spellings, and the quote. One rule that ends in itself: the compiler knows most tokens that may
// follow in advance, which it does not where each character ends a rule.
Ebnf JsonStringEnd(int64_t min, EbnfRules* rules);
// `text` as a JSON string; other characters than JSON demands are not escaped.
std::string JsonString(std::string_view text);

struct PatternUse {
  TextForm form = TextForm::kPlain;
  bool whole = false;  // the pattern matches all of the text; else a part, as ECMA's test()
  int64_t min_length = 0;
  int64_t max_length = -1;  // < 0: without a bound
};
// The texts that `pattern` matches and that have these lengths. In a JSON string, repetitions and
// the text around the match have no characters that JSON escapes, where others match.
// INVALID_ARGUMENT for an anchor within the pattern, and for bounds of lengths that do not follow
// from one repetition of a character.
Result<Ebnf> PatternToEbnf(const Pattern& pattern, const PatternUse& use, EbnfRules* rules);

}  // namespace polysketch
