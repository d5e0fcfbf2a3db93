// JSON Schemas as EBNF.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/json_value.h"

namespace polysketch {

// The JSON texts that `schema` describes (docs/structured-output.md). `compact`: one space after
// each `,` and `:` and no other white space. INVALID_ARGUMENT for a text that is no schema, for one
// that no value is valid under, or that the grammar would not hold; it begins with the path of the
// keyword.
Result<std::string> SchemaToEbnf(std::string_view schema, bool compact);
// The same as a part of a grammar: adds its rules to `rules`, and returns the expression. The rules
// remain when it fails.
Result<Ebnf> AddSchema(JsonValue schema, bool compact, EbnfRules* rules);

}  // namespace polysketch
