// response_format, text.format and vLLM's fields of structured outputs -> v1::StructuredOutput.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/openai/json_fields.h"

namespace polysketch {

// As ParseJsonObject, for a request of a completion: JSON Schemas in it become strings, which keep
// the order of their properties. The output has properties in that order. chat_template_kwargs and tools
// become binary, which no JSON text is, for the same reason (ReadTemplateVariables, ReadTools).
Result<nlohmann::json> ParseCompletionBody(const std::string& text);

// The name of the field that constrains the output, "response_format.json_schema.schema"; empty: none. `body`: of
// ParseCompletionBody.
std::string OutputField(const nlohmann::json& body);

// Reads guided_json, guided_regex, guided_choice, guided_grammar and structured_outputs.
void ReadGuided(JsonFields* fields, v1::CompleteRequest* request);
// Reads the response_format of chat and text completions.
void ReadResponseFormat(JsonFields* fields, v1::CompleteRequest* request);
// Reads `text` of the Responses API.
void ReadResponsesText(JsonFields* fields, v1::CompleteRequest* request);
// Reads `output_config` of Anthropic's Messages API.
void ReadOutputConfig(JsonFields* fields, v1::CompleteRequest* request);
// The value of `text` that a response repeats. `body`: of ParseCompletionBody.
nlohmann::ordered_json EchoedText(const nlohmann::json& body);

}  // namespace polysketch
