#include "server/openai/tools.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/bounded_json.h"
#include "engine/sampler/sampling_params.h"
#include "server/chat/chat_template.h"
#include "server/convert/random_bits.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Choice = ToolUse::Choice;

bool IsToolName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxToolName && std::ranges::all_of(name, IsInToolName);
}

// The member `name`, which may be null or absent; nullptr then.
const ordered_json* MemberOf(const ordered_json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// `name`: its field.
Result<ordered_json> ParametersOf(const ordered_json& function, const std::string& name) {
  const ordered_json* const parameters = MemberOf(function, "parameters");
  // OpenAI: a function without parameters takes none.
  if (parameters == nullptr || *parameters == ordered_json::object())
    return ordered_json{{"type", "object"}, {"properties", ordered_json::object()}};
  if (!parameters->is_object())
    return InvalidArgument(name, ": expected a JSON Schema that is an object, found ",
                           JsonTypeName(json(*parameters)));
  const ordered_json* const type = MemberOf(*parameters, "type");
  if (type != nullptr && *type != "object")
    return InvalidArgument(name, ".type: expected \"object\", found ", Abbreviate(JsonText(*type)));
  ordered_json schema = *parameters;
  schema["type"] = "object";
  return schema;
}

// A tool of the Responses API as one of chat completions.
ordered_json Nested(const ordered_json& tool) {
  if (!tool.is_object() || tool.contains("function")) return tool;
  // Members are copied at once: the library looks for each new key among all others.
  ordered_json nested, function = tool;
  function.erase("type");
  nested["type"] = tool.contains("type") ? tool["type"] : ordered_json();
  nested["function"] = std::move(function);
  return nested;
}

Result<Tool> ToTool(const ordered_json& object, const std::string& field, const ToolNames& names) {
  const std::string inner = StrCat(field, names.function);
  if (!object.is_object())
    return InvalidArgument(field, ": expected an object, found ", JsonTypeName(json(object)));
  const ordered_json* const type = MemberOf(object, "type");
  if (type == nullptr || *type != "function")
    return InvalidArgument(field, ".type: expected function, found ",
                           type == nullptr ? "none" : Abbreviate(JsonText(*type)));
  const ordered_json* const function = MemberOf(object, "function");
  if (function == nullptr || !function->is_object())
    return InvalidArgument(inner, ": expected an object, found ",
                           function == nullptr ? "none" : JsonTypeName(json(*function)));
  const ordered_json* const name = MemberOf(*function, "name");
  Tool tool;
  if (name == nullptr || !name->is_string() || !IsToolName(tool.name = name->get<std::string>())) {
    return InvalidArgument(inner, ".name: expected 1 to ", kMaxToolName,
                           " letters, digits, underscores, hyphens or dots, found ",
                           name == nullptr ? "none" : Abbreviate(JsonText(*name)));
  }
  const ordered_json* const description = MemberOf(*function, "description");
  if (description != nullptr && !description->is_string())
    return InvalidArgument(inner, ".description: expected a string, found ",
                           JsonTypeName(json(*description)));
  const ordered_json* const strict = MemberOf(*function, "strict");
  if (strict != nullptr && !strict->is_boolean())
    return InvalidArgument(inner, ".strict: expected true or false, found ",
                           JsonTypeName(json(*strict)));
  tool.strict = strict != nullptr && strict->get<bool>();
  tool.schema_field = StrCat(inner, ".", names.parameters);
  PS_ASSIGN_OR_RETURN(tool.parameters, ParametersOf(*function, tool.schema_field));
  return tool;
}

}  // namespace

// ParseCompletionBody makes binary of tools, in which the order of members is that of the request.
Result<ordered_json> ListOfTools(const json& tools) {
  ordered_json list;
  if (tools.is_binary()) {
    const auto& bytes = tools.get_binary();
    PS_ASSIGN_OR_RETURN(
        list, ParseJson<ordered_json>({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  } else {
    list = tools;
  }
  if (!list.is_array())
    return InvalidArgument("tools: expected an array, found ", JsonTypeName(json(list)));
  return list.empty() ? ordered_json(nullptr) : list;
}

Status AddTools(ordered_json list, const ToolNames& where, ToolUse* use) {
  use->list = std::move(list);
  if (use->list.size() > kMaxTools)
    return InvalidArgument("tools: expected at most ", kMaxTools, " tools, found ",
                           use->list.size());
  std::set<std::string> names;
  for (size_t i = 0; i < use->list.size(); ++i) {
    const std::string field = StrCat("tools[", i, "]");
    PS_ASSIGN_OR_RETURN(Tool tool, ToTool(use->list[i], field, where));
    if (!names.insert(tool.name).second)
      return InvalidArgument(field, where.function, ".name: expected each name once, found \"",
                             tool.name, "\" twice");
    use->callable.push_back(std::move(tool));
  }
  use->choice = use->callable.empty() ? Choice::kNone : Choice::kAuto;
  return Status();
}

Status ChooseTool(const json& name, const std::string& field, ToolUse* use) {
  const auto found = std::find_if(use->callable.begin(), use->callable.end(),
                                  [&](const Tool& tool) { return name == tool.name; });
  if (found == use->callable.end())
    return InvalidArgument(field, ": expected the name of a tool of the request, found ",
                           Abbreviate(JsonText(name)));
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

Status ReadList(const json& tools, bool flat, ToolUse* use) {
  PS_ASSIGN_OR_RETURN(ordered_json list, ListOfTools(tools));
  if (flat) {
    for (ordered_json& tool : list) tool = Nested(tool);
  }
  return AddTools(std::move(list), {flat ? "" : ".function", "parameters"}, use);
}

Status ReadChoice(const json& choice, bool flat, ToolUse* use) {
  if (choice == "none" || choice == "auto" || choice == "required") {
    use->choice = choice == "none"   ? Choice::kNone
                  : choice == "auto" ? Choice::kAuto
                                     : Choice::kRequired;
  } else if (choice.is_object() && choice.value("type", json()) == "function") {
    const json::json_pointer at(flat ? "/name" : "/function/name");
    return ChooseTool(choice.contains(at) ? choice.at(at) : json(),
                      StrCat("tool_choice", flat ? "" : ".function", ".name"), use);
  } else {
    return InvalidArgument(
        "tool_choice: expected none, auto, required or {\"type\": \"function\", \"function\": "
        "{\"name\": NAME}}, found ",
        Abbreviate(JsonText(choice)));
  }
  return CheckChoice(use);
}

ordered_json Const(const std::string& text) { return {{"type", "const_string"}, {"value", text}}; }
ordered_json SchemaFormat(ordered_json schema, bool lenient) {
  ordered_json format = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  if (lenient) format["lenient"] = true;
  return format;
}

// Writes the structural tags of a form. `open`, `close`: of the form, unless they are control pieces.
class Tags {
 public:
  Tags(const ToolUse& use, const ToolFraming& framing, bool unmarked)
      : use_(use),
        framing_(framing),
        open_(unmarked ? "" : framing.open),
        close_(unmarked ? "" : framing.close),
        around_(!framing.one_each || !unmarked) {}

  // Calls alone.
  ordered_json Calls() const {
    if (framing_.one_each) return Separated();
    return {{"type", "sequence"},
            {"elements", {Const(open_ + Before()), Separated(), Const(After() + close_)}}};
  }
  // Text in which calls follow the mark.
  ordered_json TextWithCalls() const {
    ordered_json tags = OfTools();
    if (!framing_.one_each) {
      const ordered_json all = {{"type", "tag"},
                                {"begin", open_ + Before()},
                                {"content", Separated()},
                                {"end", After() + close_}};
      tags = ordered_json::array({all});
    }
    return {{"type", "triggered_tags"},
            {"triggers", ordered_json::array({open_})},
            {"tags", tags},
            {"stop_after_first", !use_.parallel || !framing_.one_each}};
  }

 private:
  std::string Before() const { return around_ ? std::string(framing_.before) : ""; }
  std::string After() const { return around_ ? std::string(framing_.after) : ""; }

  ordered_json OfTools() const {
    ordered_json tags = ordered_json::array();
    for (const Tool& tool : use_.callable) {
      // What the grammar would not hold of a schema is left to the model where it calls as it likes.
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
  ordered_json Separated() const {
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

// The schema of a response format; null for another constraint of the output.
Result<ordered_json> SchemaOf(const v1::StructuredOutput& output) {
  if (output.has_json_object()) return ParseJson<ordered_json>(R"({"type": "object"})");
  if (!output.has_json_schema()) return ordered_json(nullptr);
  return ParseJson<ordered_json>(output.json_schema());
}

// Whether an output may have a grammar that its client did not ask for.
bool MayBind(const ServedModel& model, const v1::CompleteRequest& request) {
  const bool long_output = request.has_max_tokens() && request.max_tokens() > kMaxGrammarTokens;
  return !request.ignore_eos() && !long_output && model.description.eos_ids_size() > 0;
}

std::string TagOf(const ordered_json& format) {
  return JsonText(ordered_json{{"type", "structural_tag"}, {"format", format}});
}

void SetTag(std::string tag, v1::CompleteRequest* request) {
  v1::StructuredOutput* const output = request->mutable_structured_output();
  output->set_structural_tag(std::move(tag));
  // As json.dumps of Python, in which models have learned calls.
  output->set_compact_json(true);
}

Result<ToolParsing> Bind(const ToolUse& use, const ServedModel& model,
                         v1::CompleteRequest* request) {
  const bool required = use.choice == Choice::kRequired;
  if (!required && !model.tool_form_named) {
    if (!model.chat_template->takes_tools())
      return FailedPrecondition(
          "tools: expected a chat template that writes the tools, found one that does not: the "
          "model would not know them (--chat-template); required and a named tool are accepted");
    if (!model.tool_form)
      return FailedPrecondition(
          "tools: expected a chat template with a form of calls that the server reads, found "
          "another (--tool-format)");
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
  // A control piece is not sampled under a grammar, and not in the text unless the request asks for it.
  parsing.unmarked = control && (required || formatted);
  const Tags tags(use, framing, control);
  if (required) {
    if (formatted)
      return InvalidArgument(
          "tool_choice: expected none or auto beside a constraint of the output, found another");
    SetTag(TagOf(tags.Calls()), request);
    if (control) request->mutable_prompt()->mutable_tokens()->add_ids(piece->id);
    return parsing;
  }
  if (formatted) {
    PS_ASSIGN_OR_RETURN(ordered_json schema, SchemaOf(request->structured_output()));
    if (schema.is_null())
      return InvalidArgument(
          "tools: expected no constraint of the output beside them but a response_format, found "
          "another");
    const ordered_json answer = SchemaFormat(std::move(schema), /*lenient=*/false);
    SetTag(TagOf({{"type", "or"}, {"elements", ordered_json::array({tags.Calls(), answer})}}),
           request);
  } else if (control) {
    request->set_skip_special_tokens(false);
  } else if (!framing.open.empty() && MayBind(model, *request)) {
    std::string tag = TagOf(tags.TextWithCalls());
    if (tag.size() <= kMaxGrammarBytes) SetTag(std::move(tag), request);
  }
  return parsing;
}

}  // namespace

ToolUse ReadTools(JsonFields* fields, bool flat) {
  ToolUse use;
  if (const json* const tools = fields->Any("tools")) fields->Merge(ReadList(*tools, flat, &use));
  use.parallel = fields->Bool("parallel_tool_calls").value_or(true);
  if (const json* const choice = fields->Any("tool_choice"))
    fields->Merge(ReadChoice(*choice, flat, &use));
  if (use.callable.empty()) use.choice = Choice::kNone;
  return use;
}

Status BindTools(const ToolUse& use, const ServedModel& model, CompletionJob* job) {
  if (use.choice == Choice::kNone) return Status();
  PS_ASSIGN_OR_RETURN(job->options.tools, Bind(use, model, &job->common));
  GrammarFields& fields = job->options.grammar;
  for (const Tool& tool : use.callable) fields.tools.push_back(tool.schema_field);
  // Of the grammar of all tools.
  if (fields.output.empty()) fields.output = "tools";
  return Status();
}

Result<ordered_json> ToArguments(const std::string& text) {
  if (text.empty()) return ordered_json::object();
  PS_ASSIGN_OR_RETURN(ordered_json arguments, ParseJson<ordered_json>(text));
  if (arguments.is_object()) return arguments;
  return InvalidArgument("expected a JSON object in a string, found another value");
}

Result<ordered_json> ToToolCalls(const json& calls, const std::string& field) {
  if (!calls.is_array())
    return InvalidArgument(field, ": expected an array, found ", JsonTypeName(calls));
  if (calls.empty()) return ordered_json(nullptr);
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = StrCat(field, "[", i, "]");
    if (!calls[i].is_object())
      return InvalidArgument(name, ": expected an object, found ", JsonTypeName(calls[i]));
    JsonFields call(calls[i], name + ".");
    if (call.String("type").value_or("function") != "function")
      call.Fail("type", "expected function, found another");
    const std::string id = call.String("id").value_or("");
    call.Ignore({"index"});
    const json* const object = call.Object("function");
    if (object == nullptr) call.Fail("function", "expected an object, found none");
    PS_RETURN_IF_ERROR(call.Finish());
    JsonFields function(*object, name + ".function.");
    const auto called = function.String("name");
    if (!called.has_value()) function.Fail("name", "expected a string, found none");
    ordered_json arguments = ordered_json::object();
    const json* const given = function.Any("arguments");
    if (given != nullptr && given->is_object()) {
      arguments = *given;
    } else if (const auto text = function.String("arguments")) {
      auto parsed = ToArguments(*text);
      if (!parsed.ok()) function.Fail("arguments", parsed.status().message());
      if (parsed.ok()) arguments = *std::move(parsed);
    }
    PS_RETURN_IF_ERROR(function.Finish());
    ordered_json one;
    if (!id.empty()) one["id"] = id;
    one["type"] = "function";
    one["function"] = {{"name", *called}, {"arguments", std::move(arguments)}};
    list.push_back(std::move(one));
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
