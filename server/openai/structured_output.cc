#include "server/openai/structured_output.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/bounded_json.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

// What a field that constrains the output has.
enum class Source { kFormat, kSchema, kJson, kRegex, kEbnf, kChoice };
struct OutputPath {
  JsonPath path;
  Source source = Source::kFormat;
};
// In the order in which they count.
const std::vector<OutputPath>& OutputPaths() {
  static const std::vector<OutputPath> kPaths = {
      {{"response_format", "json_schema", "schema"}, Source::kSchema},
      {{"response_format"}},
      {{"text", "format", "schema"}, Source::kSchema},
      {{"output_config", "format", "schema"}, Source::kSchema},
      {{"output_format", "schema"}, Source::kSchema},
      {{"guided_json"}, Source::kSchema},
      {{"json_schema"}, Source::kSchema},  // llama.cpp's, as grammar
      {{"guided_regex"}, Source::kRegex},
      {{"guided_grammar"}, Source::kEbnf},
      {{"grammar"}, Source::kEbnf},
      {{"guided_choice"}, Source::kChoice},
      {{"structured_outputs", "json"}, Source::kSchema},
      {{"structured_outputs", "json_object"}, Source::kJson},
      {{"structured_outputs", "regex"}, Source::kRegex},
      {{"structured_outputs", "grammar"}, Source::kEbnf},
      {{"structured_outputs", "choice"}, Source::kChoice},
  };
  return kPaths;
}

// The value that `path` leads to; null if there is none. J: Json, or const Json.
template <typename J>
J* ValueAt(J* body, const JsonPath& path) {
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

// Reads the fields of OutputPaths that are members of `parent`; "": of the request.
void ReadMembers(JsonFields* fields, std::string_view parent, v1::CompleteRequest* request) {
  for (const auto& [path, source] : OutputPaths()) {
    if (parent.empty() ? path.size() > 1 : path.front() != parent) continue;
    const char* const name = path.back().c_str();
    const auto output = [&] { return NewOutput(fields, name, request); };
    if (source == Source::kSchema) {
      if (fields->Any(name) != nullptr) ReadSchema(fields, name, output());
    } else if (source == Source::kJson) {
      if (fields->Bool(name).value_or(false)) output()->set_json_object(true);
    } else if (source == Source::kChoice) {
      if (const auto texts = fields->Strings(name))
        output()->mutable_choice()->mutable_texts()->Add(texts->begin(), texts->end());
    } else if (source != Source::kFormat) {
      const auto text = fields->String(name);
      if (!text || (text->empty() && source == Source::kEbnf && parent.empty())) continue;
      source == Source::kRegex ? output()->set_regex(*text) : output()->set_ebnf(*text);
    }
  }
}

// structured_outputs.disable_any_whitespace, whichever field has the schema.
void ReadCompact(JsonFields* fields, v1::CompleteRequest* request) {
  const Json* object = fields->Any("structured_outputs");
  if (object == nullptr || !object->is_object() || !request->has_structured_output()) return;
  const auto compact = object->find("disable_any_whitespace");
  if (compact != object->end() && *compact == true)
    request->mutable_structured_output()->set_compact_json(true);
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

Result<Json> ParseCompletionBody(const std::string& text) {
  static const std::vector<JsonPath> kSchemas = [] {
    std::vector<JsonPath> paths;
    for (const auto& [path, source] : OutputPaths())
      if (source == Source::kSchema) paths.push_back(path);
    return paths;
  }();
  PS_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text, {.as_text = kSchemas}));
  for (const JsonPath& path : kSchemas) {
    Json* const schema = ValueAt(&body, path);
    if (schema != nullptr && schema->is_boolean()) *schema = JsonText(*schema);
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

void ReadGuided(JsonFields* fields, v1::CompleteRequest* request) {
  ReadMembers(fields, "", request);
  if (const Json* const object = fields->Object("structured_outputs")) {
    JsonFields inner(*object, "structured_outputs.");
    ReadMembers(&inner, "structured_outputs", request);
    inner.Bool("disable_any_whitespace");  // ReadCompact reads it
    fields->Merge(inner.Finish());
  }
  ReadCompact(fields, request);
}

void ReadResponseFormat(JsonFields* fields, v1::CompleteRequest* request) {
  ReadFormat(fields, "response_format", "response_format.", "json_schema", request);
  ReadCompact(fields, request);
}

void ReadBetaFormat(JsonFields* fields, v1::CompleteRequest* request) {
  ReadFormat(fields, "output_format", "output_format.", nullptr, request);
}

void ReadOutputFormat(JsonFields* fields, const char* name, const char* ignored,
                      v1::CompleteRequest* request) {
  const Json* const object = fields->Object(name);
  if (object == nullptr) return;
  JsonFields inner(*object, StrCat(name, "."));
  ReadFormat(&inner, "format", StrCat(name, ".format."), nullptr, request);
  inner.Ignore({ignored});
  fields->Merge(inner.Finish());
  ReadCompact(fields, request);
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
