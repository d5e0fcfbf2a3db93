// Errors of a grammar that the server made of fields of a request name these fields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

// The fields of a request that constrain its output.
struct GrammarFields {
  std::string output;  // "response_format.json_schema.schema"; empty: none
  std::vector<std::string>
      tools;  // for each tool that may be called: "tools[0].function.parameters"
};

// An error message with the field of the request in place of the RPC's structured_output. What a
// structural tag has around a schema or a pattern, which the client did not write, is left out. Another message is
// unchanged.
std::string NameGrammarField(std::string_view message, const GrammarFields& fields);

}  // namespace polysketch
