// response_format, text.format and vLLM's fields of structured outputs -> v1::StructuredOutput,
// whose errors name these fields.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/openai/json_fields.h"

namespace polysketch {

// As ParseJsonObject, for a request of a completion: JSON Schemas in it become strings, which keep
// the digits of their numbers.
Result<nlohmann::ordered_json> ParseCompletionBody(const std::string& text);

// The name of the field that constrains the output, "response_format.json_schema.schema"; empty:
// none. `body`: of ParseCompletionBody.
std::string OutputField(const nlohmann::ordered_json& body);

// The fields of a request that constrain its output.
struct GrammarFields {
  std::string output;  // "response_format.json_schema.schema"; empty: none
  std::vector<std::string>
      tools;  // for each tool that may be called: "tools[0].function.parameters"
};

// An error message with the field of the request in place of the RPC's structured_output. What a
// structural tag has around a schema or a pattern, which the client did not write, is left out.
// Another message is unchanged.
std::string NameGrammarField(std::string_view message, const GrammarFields& fields);

// Reads guided_json, guided_regex, guided_choice, guided_grammar and structured_outputs.
void ReadGuided(JsonFields* fields, v1::CompleteRequest* request);
// Reads the response_format of chat and text completions.
void ReadResponseFormat(JsonFields* fields, v1::CompleteRequest* request);
// Reads the member `format` of the field `name`: "text" of the Responses API, "output_config" of
// Anthropic's Messages API. `ignored`: the other member.
void ReadOutputFormat(JsonFields* fields, const char* name, const char* ignored,
                      v1::CompleteRequest* request);
// Reads output_format, the name of output_config.format in Anthropic's beta.
void ReadBetaFormat(JsonFields* fields, v1::CompleteRequest* request);
// The value of `text` that a response repeats. `body`: of ParseCompletionBody.
nlohmann::ordered_json EchoedText(const nlohmann::ordered_json& body);

// What constrains an output as a format of xgrammar's structural tags; null for EBNF.
Result<nlohmann::ordered_json> FormatOf(const v1::StructuredOutput& output);
// The format of a JSON Schema.
nlohmann::ordered_json SchemaFormat(nlohmann::ordered_json schema, bool lenient = false);
// Binds the output to a format. `compact`: StructuredOutput::compact_json.
void SetFormat(nlohmann::ordered_json format, bool compact, v1::CompleteRequest* request);

}  // namespace polysketch
