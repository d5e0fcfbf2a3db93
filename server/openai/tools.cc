#include "server/openai/tools.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/bounded_json.h"
#include "engine/sampler/sampling_params.h"
#include "server/chat/chat_template.h"
#include "server/convert/random_bits.h"
#include "server/http/json_text.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;
using Choice = ToolUse::Choice;

// As json.dumps of Python, in which models have learned calls.
constexpr bool kCompact = true;

bool IsToolName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxToolName && std::ranges::all_of(name, IsInToolName);
}

// Of a value that is not as expected, for an error.
std::string Found(const Json* value) {
  return value == nullptr ? "none" : Abbreviate(JsonText(*value));
}

// `name`: of the field; `parameters`: its value, or null.
Result<Json> ParametersOf(const Json* parameters, const std::string& name) {
  // OpenAI: a function without parameters takes none.
  if (parameters == nullptr || *parameters == Json::object())
    return Json{{"type", "object"}, {"properties", Json::object()}};
  if (!parameters->is_object())
    return InvalidArgument(name, ": expected a JSON Schema that is an object, found ",
                           JsonTypeName(*parameters));
  const Json type = parameters->value("type", Json());
  if (!type.is_null() && type != "object")
    return InvalidArgument(name, ".type: expected \"object\", found ", Found(&type));
  Json schema = *parameters;
  schema["type"] = "object";
  return schema;
}

// A tool of the Responses API as one of chat completions.
Json Nested(const Json& tool) {
  if (!tool.is_object() || MemberOf(tool, "function") != nullptr) return tool;
  // Members are copied at once: the library looks for each new key among all others.
  Json nested, function = tool;
  function.erase("type");
  nested["type"] = tool.contains("type") ? tool["type"] : Json();
  nested["function"] = std::move(function);
  return nested;
}

Result<Tool> ToTool(const Json& object, const std::string& field, const ToolNames& names) {
  const std::string inner = StrCat(field, names.function);
  PS_RETURN_IF_ERROR(CheckObject(object, field));
  JsonFields outer(object, field + ".");
  const Json* const type = outer.Any("type");
  if (type == nullptr || *type != "function")
    outer.Fail("type", "expected function, found " + Found(type));
  (void)outer.Needed("function", "an object");
  const Json* const function = outer.Object("function");
  PS_RETURN_IF_ERROR(outer.status());
  JsonFields fields(*function, inner + ".");
  const Json* const name = fields.Any("name");
  Tool tool;
  if (name == nullptr || !name->is_string() || !IsToolName(tool.name = name->get<std::string>())) {
    fields.Fail("name",
                StrCat("expected 1 to ", kMaxToolName,
                       " letters, digits, underscores, hyphens or dots, found ", Found(name)));
  }
  fields.String("description");
  tool.strict = fields.Bool("strict").value_or(false);
  PS_RETURN_IF_ERROR(fields.status());
  tool.schema_field = StrCat(inner, ".", names.parameters);
  PS_ASSIGN_OR_RETURN(tool.parameters, ParametersOf(fields.Any("parameters"), tool.schema_field));
  return tool;
}

}  // namespace

Status ReadToolList(const Json& tools, const ToolNames& where, const ToolConverter& convert,
                    ToolUse* use) {
  if (!tools.is_array())
    return InvalidArgument("tools: expected an array, found ", JsonTypeName(tools));
  if (tools.size() > kMaxTools)
    return InvalidArgument("tools: expected at most ", kMaxTools, " tools, found ", tools.size());
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string field = StrCat("tools[", i, "]");
    PS_ASSIGN_OR_RETURN(Json nested, convert(tools[i], field));
    PS_ASSIGN_OR_RETURN(Tool tool, ToTool(nested, field, where));
    if (!names.insert(tool.name).second)
      return InvalidArgument(field, where.function, ".name: expected each name once, found \"",
                             tool.name, "\" twice");
    use->callable.push_back(std::move(tool));
    use->list.push_back(std::move(nested));
  }
  use->choice = use->callable.empty() ? Choice::kNone : Choice::kAuto;
  return Status();
}

Status ChooseTool(const Json& name, const std::string& field, ToolUse* use) {
  const auto found = std::find_if(use->callable.begin(), use->callable.end(),
                                  [&](const Tool& tool) { return name == tool.name; });
  if (found == use->callable.end())
    return InvalidArgument(field, ": expected the name of a tool of the request, found ",
                           Found(&name));
  use->choice = Choice::kRequired;
  use->parallel = false;
  use->callable = {Tool(*found)};
  return Status();
}

Status CheckChoice(ToolUse* use) {
  if (!use->callable.empty()) return Status();
  if (use->choice == Choice::kRequired)
    return InvalidArgument("tool_choice: expected tools beside it, found none");
  use->choice = Choice::kNone;
  return Status();
}

namespace {

Status ReadChoice(const Json& choice, bool flat, ToolUse* use) {
  if (choice == "none" || choice == "auto" || choice == "required") {
    use->choice = choice == "none"   ? Choice::kNone
                  : choice == "auto" ? Choice::kAuto
                                     : Choice::kRequired;
  } else if (choice.is_object() && choice.value("type", Json()) == "function") {
    const Json::json_pointer at(flat ? "/name" : "/function/name");
    return ChooseTool(choice.contains(at) ? choice.at(at) : Json(),
                      StrCat("tool_choice", flat ? "" : ".function", ".name"), use);
  } else {
    return InvalidArgument(
        "tool_choice: expected none, auto, required or {\"type\": \"function\", ",
        flat ? "\"name\": NAME}" : "\"function\": {\"name\": NAME}}", ", found ", Found(&choice));
  }
  return CheckChoice(use);
}

Json Const(const std::string& text) { return {{"type", "const_string"}, {"value", text}}; }

// Writes the structural tags of a form. `open`, `close`: of the form, unless they are control
// pieces.
class Tags {
 public:
  Tags(const ToolUse& use, const ToolFraming& framing, bool unmarked)
      : use_(use),
        framing_(framing),
        open_(unmarked ? "" : framing.open),
        close_(unmarked ? "" : framing.close),
        around_(!framing.one_each || !unmarked) {}

  // Calls alone.
  Json Calls() const {
    if (framing_.one_each) return Separated();
    return {{"type", "sequence"},
            {"elements", {Const(open_ + Before()), Separated(), Const(After() + close_)}}};
  }
  // Text in which calls follow the mark.
  Json TextWithCalls() const {
    Json tags = OfTools();
    if (!framing_.one_each) {
      const Json all = {{"type", "tag"},
                        {"begin", open_ + Before()},
                        {"content", Separated()},
                        {"end", After() + close_}};
      tags = Json::array({all});
    }
    return {{"type", "triggered_tags"},
            {"triggers", Json::array({open_})},
            {"tags", tags},
            {"stop_after_first", !use_.parallel || !framing_.one_each}};
  }

 private:
  std::string Before() const { return around_ ? std::string(framing_.before) : ""; }
  std::string After() const { return around_ ? std::string(framing_.after) : ""; }

  Json OfTools() const {
    Json tags = Json::array();
    for (const Tool& tool : use_.callable) {
      // What the grammar would not hold of a schema is left to the model where it calls as it
      // likes.
      const bool lenient = use_.choice == Choice::kAuto && !tool.strict;
      const std::string before = framing_.one_each ? open_ + Before() : "";
      const std::string after = framing_.one_each ? After() + close_ : "";
      tags.push_back({{"type", "tag"},
                      {"begin", StrCat(before, framing_.call[0], tool.name, framing_.call[1])},
                      {"content", SchemaFormat(tool.parameters, lenient)},
                      {"end", StrCat(framing_.call[2], after)}});
    }
    return tags;
  }
  Json Separated() const {
    return {{"type", "tags_with_separator"},
            {"tags", OfTools()},
            {"separator", framing_.separator},
            {"at_least_one", true},
            {"stop_after_first", !use_.parallel}};
  }

  const ToolUse& use_;
  const ToolFraming& framing_;
  const std::string open_, close_;
  const bool around_;  // what stands within open and close is written
};

// Whether an output may have a grammar that its client did not ask for.
bool MayBind(const ServedModel& model, const v1::CompleteRequest& request) {
  const bool long_output = request.has_max_tokens() && request.max_tokens() > kMaxGrammarTokens;
  return !request.ignore_eos() && !long_output && model.description.eos_ids_size() > 0;
}

Result<ToolParsing> Bind(const ToolUse& use, const ServedModel& model, CompletionJob* job) {
  v1::CompleteRequest* const request = &job->common;
  const bool required = use.choice == Choice::kRequired;
  // A template that takes no tools gets them as text, which asks for the form json.
  if (!required && !model.tool_form && model.chat_template->takes_tools()) {
    return FailedPrecondition(
        "tools: expected a chat template with a form of calls that the server reads, found another "
        "(--tool-format)");
  }
  ToolParsing parsing;
  parsing.form = model.tool_form.value_or(ToolForm::kJson);
  for (const Tool& tool : use.callable) parsing.names.insert(tool.name);
  if (!use.parallel) parsing.max_calls = 1;
  const ToolFraming& framing = FramingOf(parsing.form);
  const ControlPiece* const piece =
      framing.open.empty() ? nullptr : model.rules.tokenizer->ControlPieceAt(framing.open);
  const bool control = piece != nullptr && piece->text == framing.open;

  const bool formatted = request->has_structured_output();
  // A control piece is not sampled under a grammar.
  parsing.unmarked = control && (required || formatted);
  const Tags tags(use, framing, control);
  if (required) {
    if (formatted)
      return InvalidArgument(
          "tool_choice: expected none or auto beside a constraint of the output, found another");
    SetFormat(tags.Calls(), kCompact, request);
    if (control) request->mutable_prompt()->mutable_tokens()->add_ids(piece->id);
    return parsing;
  }
  if (formatted) {
    const v1::StructuredOutput& output = request->structured_output();
    if (!output.has_json_object() && !output.has_json_schema())
      return InvalidArgument(
          "tools: expected no constraint of the output beside them but a response_format, found "
          "another");
    PS_ASSIGN_OR_RETURN(const Json answer, FormatOf(output));
    SetFormat({{"type", "or"}, {"elements", Json::array({tags.Calls(), answer})}}, kCompact,
              request);
  } else if (control) {
    ShowMarks({framing.open, framing.close}, job);
  } else if (!framing.open.empty() && MayBind(model, *request)) {
    SetFormat(tags.TextWithCalls(), kCompact, request);
    if (request->structured_output().structural_tag().size() > kMaxGrammarBytes)
      request->clear_structured_output();
  }
  return parsing;
}

}  // namespace

ToolUse ReadTools(JsonFields* fields, bool flat) {
  ToolUse use;
  if (const Json* const tools = fields->Any("tools")) {
    fields->Merge(ReadToolList(
        *tools, {flat ? "" : ".function", "parameters"},
        [flat](const Json& tool, const std::string&) { return flat ? Nested(tool) : tool; }, &use));
  }
  use.parallel = fields->Bool("parallel_tool_calls").value_or(true);
  if (const Json* const choice = fields->Any("tool_choice"))
    fields->Merge(ReadChoice(*choice, flat, &use));
  if (use.callable.empty()) use.choice = Choice::kNone;
  return use;
}

Status BindTools(const ToolUse& use, const ServedModel& model, CompletionJob* job) {
  if (use.choice == Choice::kNone) return Status();
  PS_ASSIGN_OR_RETURN(job->options.tools, Bind(use, model, job));
  GrammarFields& fields = job->options.grammar;
  for (const Tool& tool : use.callable) fields.tools.push_back(tool.schema_field);
  // Of the grammar of all tools.
  if (fields.output.empty()) fields.output = "tools";
  return Status();
}

Json ReadArguments(JsonFields* fields, const char* name) {
  const Json* const given = fields->Any(name);
  if (given != nullptr && given->is_object()) return *given;
  const std::string text = fields->String(name).value_or("");
  if (text.empty()) return Json::object();
  Result<Json> arguments = ParseJson<Json>(text);
  if (arguments.ok() && arguments->is_object()) return *std::move(arguments);
  fields->Fail(name, arguments.ok() ? "expected a JSON object in a string, found another value"
                                    : arguments.status().message());
  return Json::object();
}

Json ToolCall(const std::string& id, const std::string& name, Json arguments) {
  Json call;
  if (!id.empty()) call["id"] = id;
  call["type"] = "function";
  call["function"] = {{"name", name}, {"arguments", std::move(arguments)}};
  return call;
}

Result<Json> ToToolCalls(const Json& calls, const std::string& field) {
  if (calls.is_array() && calls.empty()) return Json(nullptr);
  PS_RETURN_IF_ERROR(CheckList(calls, field, "an array"));
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = StrCat(field, "[", i, "]");
    PS_RETURN_IF_ERROR(CheckObject(calls[i], name));
    JsonFields call(calls[i], name + ".");
    (void)call.OneOf("type", {"function"}, "function");
    const std::string id = call.String("id").value_or("");
    call.Ignore({"index"});
    (void)call.Needed("function", "an object");
    const Json* const object = call.Object("function");
    PS_RETURN_IF_ERROR(call.Finish());
    JsonFields function(*object, name + ".function.");
    const std::string called = function.NeededString("name");
    Json arguments = ReadArguments(&function, "arguments");
    PS_RETURN_IF_ERROR(function.Finish());
    list.push_back(ToolCall(id, called, std::move(arguments)));
  }
  return list;
}

std::string NewCallId(ToolForm form, std::string_view prefix) {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  // Mistral's templates refuse ids of another length.
  const bool mistral = form == ToolForm::kMistral;
  std::string id(mistral ? "" : prefix);
  for (int i = 0; i < (mistral ? 9 : 24); ++i) id += kLetters[RandomBits() % kLetters.size()];
  return id;
}

}  // namespace polysketch
