// Sources of grammars: an error that can be shown, or EBNF that is UTF-8 and has a root. The first byte
// selects the kind and the white space.
#include <string>

#include "base/utf8.h"
#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/pattern.h"
#include "engine/grammar_source/translate.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

void CheckEbnf(const Result<std::string>& ebnf) {
  if (!ebnf.ok()) return fuzz::CheckError(ebnf.status());
  PS_CHECK(ebnf->starts_with("root ::= "));
  PS_CHECK(ValidUtf8Prefix(*ebnf) == ebnf->size());
  PS_CHECK(ebnf->find('\0') == std::string::npos);
}

// The pattern is searched in its own text, by a matcher that ends.
void CheckPattern(const std::string& text) {
  const Result<Pattern> pattern = ParsePattern(text);
  if (!pattern.ok()) return;
  const PatternLength length = LengthOf(*pattern);
  PS_CHECK(length.min >= 0 && (length.max < 0 || length.min <= length.max));
  FoundIn(*pattern, ToCodePoints(text).substr(0, 40));
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  if (size == 0 || size > 2000) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  // What reaches the translation is a string of protobuf.
  if (ValidUtf8Prefix(text) != text.size()) return 0;
  using Kind = GrammarSource::Kind;
  if ((data[0] & 1) != 0) {
    CheckEbnf(ToEbnf({Kind::kRegex, text}));
    if (size < 60) CheckPattern(text);
  } else {
    CheckEbnf(ToEbnf({Kind::kJsonSchema, text, (data[0] & 2) != 0}));
  }
  return 0;
}
