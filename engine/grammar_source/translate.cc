#include "engine/grammar_source/translate.h"

#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/ebnf_check.h"
#include "engine/grammar_source/pattern.h"
#include "engine/grammar_source/pattern_grammar.h"
#include "engine/grammar_source/schema_grammar.h"
#include "engine/grammar_source/structural_tag.h"

namespace polysketch {
namespace {

Result<std::string> RegexToEbnf(const std::string& regex) {
  PS_ASSIGN_OR_RETURN(const Pattern pattern, ParsePattern(regex));
  EbnfRules rules;
  PS_ASSIGN_OR_RETURN(const Ebnf root, PatternToEbnf(pattern, {.whole = true}, &rules));
  return rules.Finish(root);
}

}  // namespace

Result<std::string> ToEbnf(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarSource::Kind::kJson:
      return SchemaToEbnf(R"({"type": "object"})", source.compact);
    case GrammarSource::Kind::kJsonSchema:
      return SchemaToEbnf(source.text, source.compact);
    case GrammarSource::Kind::kRegex:
      return RegexToEbnf(source.text);
    case GrammarSource::Kind::kEbnf:
      return CheckedEbnf(source.text);
    case GrammarSource::Kind::kStructuralTag:
      return StructuralTagToEbnf(source.text, source.compact);
  }
  return InvalidArgument("expected a kind of grammar");
}

}  // namespace polysketch
