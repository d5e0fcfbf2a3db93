#include "server/openai/structured_output.h"

#include <string>
#include <utility>
#include <vector>

#include "server/http/json_text.h"
#include "server/openai/json_slice.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

using Path = std::vector<std::string>;

// A field that constrains the output.
struct OutputPath {
  Path path;
  bool schema = false;  // a JSON Schema
};
const std::vector<OutputPath>& OutputPaths() {
  static const std::vector<OutputPath> kPaths = {
      {{"response_format", "json_schema", "schema"}, true},
      {{"response_format"}},
      {{"text", "format", "schema"}, true},
      {{"output_config", "format", "schema"}, true},
      {{"guided_json"}, true},
      {{"json_schema"}, true},
      {{"guided_regex"}},
      {{"guided_grammar"}},
      {{"grammar"}},
      {{"guided_choice"}},
      {{"structured_outputs", "json"}, true},
      {{"structured_outputs", "json_object"}},
      {{"structured_outputs", "regex"}},
      {{"structured_outputs", "grammar"}},
      {{"structured_outputs", "choice"}},
  };
  return kPaths;
}

// The value that `path` leads to; null if there is none. J: Json, or const Json.
template <typename J>
J* ValueAt(J* body, const Path& path) {
  for (const std::string& name : path) {
    if (!body->is_object() || !body->contains(name)) return nullptr;
    body = &body->at(name);
  }
  return body;
}

// The output of `request`, to set. Fails if it has one: several fields ask for one.
v1::StructuredOutput* NewOutput(JsonFields* fields, const char* name,
                                v1::CompleteRequest* request) {
  if (request->has_structured_output())
    fields->Fail(name, "expected one field that constrains the output, found another beside it");
  return request->mutable_structured_output();
}

// A schema is a string (ParseCompletionBody), which vLLM accepts too.
void ReadSchema(JsonFields* fields, const char* name, v1::StructuredOutput* output) {
  const Json* schema = fields->Any(name);
  if (schema == nullptr || !schema->is_string()) {
    fields->Fail(name, StrCat("expected a JSON Schema, found ",
                              schema == nullptr ? "none" : JsonTypeName(*schema)));
    return;
  }
  output->set_json_schema(schema->get<std::string>());
}

void ReadChoices(const std::optional<std::vector<std::string>>& texts,
                 v1::StructuredOutput* output) {
  output->mutable_choice()->mutable_texts()->Add(texts->begin(), texts->end());
}

// structured_outputs.disable_any_whitespace, whichever field has the schema.
void ReadCompact(JsonFields* fields, v1::CompleteRequest* request) {
  const Json* object = fields->Any("structured_outputs");
  if (object == nullptr || !object->is_object() || !request->has_structured_output()) return;
  const auto compact = object->find("disable_any_whitespace");
  if (compact != object->end() && *compact == true)
    request->mutable_structured_output()->set_compact_json(true);
}

// vLLM's structured_outputs: {"json": ...} and its like.
void ReadStructuredOutputs(JsonFields* fields, v1::CompleteRequest* request) {
  const Json* object = fields->Object("structured_outputs");
  if (object == nullptr) return;
  JsonFields inner(*object, "structured_outputs.");
  if (inner.Any("json") != nullptr) ReadSchema(&inner, "json", NewOutput(&inner, "json", request));
  if (inner.Bool("json_object").value_or(false))
    NewOutput(&inner, "json_object", request)->set_json_object(true);
  if (const auto value = inner.String("regex"))
    NewOutput(&inner, "regex", request)->set_regex(*value);
  if (const auto value = inner.String("grammar"))
    NewOutput(&inner, "grammar", request)->set_ebnf(*value);
  if (const auto value = inner.Strings("choice"))
    ReadChoices(value, NewOutput(&inner, "choice", request));
  inner.Bool("disable_any_whitespace");  // ReadCompact reads it
  fields->Merge(inner.Finish());
}

// An object with a type: text, json_object or json_schema. `nested`: the field that holds name and
// schema; null: they are beside the type.
void ReadFormat(JsonFields* fields, const char* name, const std::string& prefix, const char* nested,
                v1::CompleteRequest* request) {
  const Json* object = fields->Object(name);
  if (object == nullptr) return;
  JsonFields format(*object, prefix);
  const std::string type = format.OneOf("type", {"text", "json_object", "json_schema"});
  const auto read_schema = [&](JsonFields* in) {
    // The API's form of a schema has them; the grammar does not.
    for (const char* const other : {"name", "description", "strict"}) in->Any(other);
    ReadSchema(in, "schema", NewOutput(fields, name, request));
  };
  if (type == "json_object") {
    NewOutput(fields, name, request)->set_json_object(true);
  } else if (type == "json_schema" && nested == nullptr) {
    read_schema(&format);
  } else if (type == "json_schema") {
    if (const Json* inner = format.Object(nested)) {
      JsonFields schema(*inner, StrCat(prefix, nested, "."));
      read_schema(&schema);
      fields->Merge(schema.Finish());
    } else {
      format.Fail(nested, "expected an object with a schema, found none");
    }
  }
  fields->Merge(format.Finish());
}

}  // namespace

Result<Json> ParseCompletionBody(const std::string& text) {
  PS_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  for (const auto& [path, is_schema] : OutputPaths()) {
    if (!is_schema) continue;
    Json* const schema = ValueAt(&body, path);
    if (schema != nullptr && (schema->is_object() || schema->is_boolean()))
      *schema = JsonSlice(text, path).value_or("");
  }
  return body;
}

std::string OutputField(const Json& body) {
  for (const OutputPath& output : OutputPaths()) {
    const Json* const value = ValueAt(&body, output.path);
    if (value == nullptr || value->is_null()) continue;
    std::string name;
    for (const std::string& part : output.path) name += StrCat(name.empty() ? "" : ".", part);
    return name;
  }
  return "";
}

void ReadGuided(JsonFields* fields, v1::CompleteRequest* request) {
  // The second name is llama.cpp's.
  for (const char* const name : {"guided_json", "json_schema"})
    if (fields->Any(name) != nullptr) ReadSchema(fields, name, NewOutput(fields, name, request));
  if (const auto value = fields->String("guided_regex"))
    NewOutput(fields, "guided_regex", request)->set_regex(*value);
  for (const char* const name : {"guided_grammar", "grammar"}) {
    const auto value = fields->String(name);
    if (value && !value->empty()) NewOutput(fields, name, request)->set_ebnf(*value);
  }
  if (const auto value = fields->Strings("guided_choice"))
    ReadChoices(value, NewOutput(fields, "guided_choice", request));
  ReadStructuredOutputs(fields, request);
  ReadCompact(fields, request);
}

void ReadResponseFormat(JsonFields* fields, v1::CompleteRequest* request) {
  ReadFormat(fields, "response_format", "response_format.", "json_schema", request);
  ReadCompact(fields, request);
}

void ReadResponsesText(JsonFields* fields, v1::CompleteRequest* request) {
  const Json* text = fields->Object("text");
  if (text == nullptr) return;
  JsonFields inner(*text, "text.");
  ReadFormat(&inner, "format", "text.format.", nullptr, request);
  inner.Ignore({"verbosity"});
  fields->Merge(inner.Finish());
  ReadCompact(fields, request);
}

void ReadOutputConfig(JsonFields* fields, v1::CompleteRequest* request) {
  const Json* config = fields->Object("output_config");
  if (config == nullptr) return;
  JsonFields inner(*config, "output_config.");
  ReadFormat(&inner, "format", "output_config.format.", nullptr, request);
  inner.Ignore({"effort"});
  fields->Merge(inner.Finish());
}

Json EchoedText(const Json& body) {
  const Json::json_pointer at("/text/format");
  if (!body.contains(at) || body.at(at).is_null()) return {{"format", {{"type", "text"}}}};
  Json format = body.at(at);
  if (format.contains("schema") && format["schema"].is_string()) {
    auto schema = ParseJson<Json>(format["schema"].get_ref<const std::string&>());
    if (schema.ok()) format["schema"] = *std::move(schema);
  }
  return {{"format", std::move(format)}};
}

Json SchemaFormat(Json schema, bool lenient) {
  Json format = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  if (lenient) format["lenient"] = true;
  return format;
}

Result<Json> FormatOf(const v1::StructuredOutput& output) {
  switch (output.grammar_case()) {
    case v1::StructuredOutput::kJsonObject:
      return SchemaFormat({{"type", "object"}});
    case v1::StructuredOutput::kJsonSchema: {
      PS_ASSIGN_OR_RETURN(Json schema, ParseJson<Json>(output.json_schema()));
      return SchemaFormat(std::move(schema));
    }
    case v1::StructuredOutput::kRegex:
      return Json{{"type", "regex"}, {"pattern", output.regex()}};
    case v1::StructuredOutput::kChoice: {
      Json texts = Json::array();
      for (const std::string& text : output.choice().texts())
        texts.push_back({{"type", "const_string"}, {"value", text}});
      return Json{{"type", "or"}, {"elements", std::move(texts)}};
    }
    case v1::StructuredOutput::kStructuralTag: {
      PS_ASSIGN_OR_RETURN(Json tag, ParseJson<Json>(output.structural_tag()));
      return Json(tag["format"]);
    }
    default:
      return Json(nullptr);
  }
}

void SetFormat(Json format, bool compact, v1::CompleteRequest* request) {
  v1::StructuredOutput* const output = request->mutable_structured_output();
  output->set_structural_tag(
      JsonText(Json{{"type", "structural_tag"}, {"format", std::move(format)}}));
  output->set_compact_json(compact);
}

}  // namespace polysketch
