// Sources of grammars: an error that can be shown, or EBNF that is UTF-8 and has a root. The first
// byte selects the kind and the white space.
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

void Run(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > 2000) return;
  const std::string text(bytes.substr(1));
  // What reaches the translation is a string of protobuf.
  if (ValidUtf8Prefix(text) != text.size()) return;
  using Kind = GrammarSource::Kind;
  if ((bytes[0] & 1) != 0) {
    CheckEbnf(ToEbnf({Kind::kRegex, text}));
    if (text.size() < 60) CheckPattern(text);
  } else if ((bytes[0] & 4) != 0) {
    CheckEbnf(ToEbnf({Kind::kStructuralTag, text, (bytes[0] & 2) != 0}));
  } else {
    CheckEbnf(ToEbnf({Kind::kJsonSchema, text, (bytes[0] & 2) != 0}));
  }
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  polysketch::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
