// v1::StructuredOutput -> GrammarSource.
#include <string>
#include <utility>

#include "engine/grammar_source/ebnf.h"
#include "server/convert/convert.h"

namespace polysketch {
namespace {

constexpr int kMaxOutputChoices = 1024;

Result<GrammarSource> ToChoiceGrammar(const v1::OutputChoices& choices) {
  if (choices.texts().empty() || choices.texts_size() > kMaxOutputChoices) {
    return InvalidArgument("structured_output.choice: expected 1 to ", kMaxOutputChoices,
                           " texts, found ", choices.texts_size());
  }
  std::string rule = "root ::= ";
  for (int i = 0; i < choices.texts_size(); ++i) {
    if (choices.texts(i).empty())
      return InvalidArgument("structured_output.choice[", i, "]: expected a text, found none");
    if (i > 0) rule += " | ";
    rule += EbnfLiteral(choices.texts(i));
  }
  return GrammarSource{GrammarSource::Kind::kEbnf, std::move(rule)};
}

}  // namespace

Result<GrammarSource> ToGrammarSource(const v1::StructuredOutput& output) {
  using Kind = GrammarSource::Kind;
  switch (output.grammar_case()) {
    case v1::StructuredOutput::kJsonSchema:
      return GrammarSource{Kind::kJsonSchema, output.json_schema(), output.compact_json()};
    case v1::StructuredOutput::kJsonObject:
      if (output.json_object()) return GrammarSource{Kind::kJson, "", output.compact_json()};
      return InvalidArgument("structured_output.json_object: expected true, found false");
    case v1::StructuredOutput::kRegex:
      return GrammarSource{Kind::kRegex, output.regex()};
    case v1::StructuredOutput::kEbnf:
      return GrammarSource{Kind::kEbnf, output.ebnf()};
    case v1::StructuredOutput::kChoice:
      return ToChoiceGrammar(output.choice());
    case v1::StructuredOutput::kStructuralTag:
      return GrammarSource{Kind::kStructuralTag, output.structural_tag(), output.compact_json()};
    case v1::StructuredOutput::GRAMMAR_NOT_SET:
      break;
  }
  return InvalidArgument(
      "structured_output: expected json_schema, json_object, regex, ebnf, choice or "
      "structural_tag, found none");
}

}  // namespace polysketch
