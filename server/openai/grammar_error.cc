#include "server/openai/grammar_error.h"

#include <algorithm>
#include <charconv>

#include "base/status.h"

namespace polysketch {
namespace {

constexpr std::string_view kOutput = "structured_output", kTag = "/format",
                           kSchema = "/json_schema", kTags = "/tags/";

// The field whose schema or pattern stands where `pointer` of a structural tag leads.
const std::string& FieldAt(std::string_view pointer, const GrammarFields& fields) {
  const size_t tag = pointer.rfind(kTags);
  if (tag == std::string_view::npos) return fields.output;
  size_t tool = 0;
  const std::string_view number = pointer.substr(tag + kTags.size());
  std::from_chars(number.data(), number.data() + number.size(), tool);
  return tool < fields.tools.size() ? fields.tools[tool] : fields.output;
}

}  // namespace

std::string NameGrammarField(std::string_view message, const GrammarFields& fields) {
  if (!message.starts_with(kOutput)) return std::string(message);
  std::string_view rest = message.substr(kOutput.size());
  if (!rest.starts_with(StrCat(": ", kTag))) {
    // The RPC's member of the field: structured_output.choice[1].
    const size_t member = rest.starts_with('.') ? rest.find_first_of("[:") : 0;
    if (fields.output.empty() || member == std::string_view::npos) return std::string(message);
    return StrCat(fields.output, rest.substr(member));
  }
  rest.remove_prefix(2);
  const std::string_view pointer = rest.substr(0, rest.find(": "));
  const size_t schema = pointer.find(kSchema);
  const std::string& field = FieldAt(pointer.substr(0, schema), fields);
  if (field.empty()) return std::string(message);
  const bool within = schema != std::string_view::npos && schema + kSchema.size() < pointer.size();
  const size_t cut = within ? schema + kSchema.size() : std::min(pointer.size() + 2, rest.size());
  return StrCat(field, ": ", rest.substr(cut));
}

}  // namespace polysketch
