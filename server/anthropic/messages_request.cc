#include <string_view>
#include <utility>
#include <vector>

#include "server/anthropic/messages.h"
#include "server/http/json_text.h"
#include "server/openai/chat_request.h"
#include "server/openai/structured_output.h"
#include "server/openai/tools.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

// A mark of what to keep: the prefix cache of the server needs none.
void AcceptCacheControl(JsonFields* fields) { fields->Object("cache_control"); }

// Makes the messages of a template of the messages of a request: the result of a tool is a message of its own,
// and messages of one role after the other are one.
class Conversation {
 public:
  // Blocks become lines.
  void AddText(const std::string& role, const std::string& text) {
    std::string& lines = Last(role)->content;
    lines += (lines.empty() ? "" : "\n") + text;
  }

  Status Add(const Json& message, const std::string& field) {
    PS_RETURN_IF_ERROR(CheckObject(message, field));
    JsonFields fields(message, field + ".");
    const std::string role = fields.OneOf("role", {"user", "assistant", "system"});
    constexpr std::string_view kContent = "a string or an array of blocks";
    const Json* const content = fields.Needed("content", kContent);
    PS_RETURN_IF_ERROR(fields.Finish());
    if (content->is_string()) {
      AddText(role, content->get_ref<const std::string&>());
      return Status();
    }
    PS_RETURN_IF_ERROR(CheckList(*content, field + ".content", kContent));
    for (size_t i = 0; i < content->size(); ++i)
      PS_RETURN_IF_ERROR(AddBlock(role, (*content)[i], StrCat(field, ".content[", i, "]")));
    return Status();
  }

  std::vector<ChatMessage> Take() { return std::move(messages_); }

 private:
  // The message that has what comes of the role.
  ChatMessage* Last(const std::string& role) {
    if (messages_.empty() || messages_.back().role != role)
      messages_.push_back({.role = role, .content = "", .name = ""});
    return &messages_.back();
  }

  Status AddBlock(const std::string& role, const Json& object, const std::string& field) {
    PS_RETURN_IF_ERROR(CheckObject(object, field));
    JsonFields block(object, field + ".");
    AcceptCacheControl(&block);
    const std::string type = block.String("type").value_or("");
    if (type == "text") {
      block.Any("citations");
      AddText(role, block.NeededString("text"));
    } else if (type == "tool_use" && role == "assistant") {
      AddCall(&block);
    } else if (type == "tool_result" && role == "user") {
      PS_RETURN_IF_ERROR(AddResult(&block, field));
    } else if ((type == "thinking" || type == "redacted_thinking") && role == "assistant") {
      for (const char* const name : {"signature", "data"}) block.String(name);
      Last(role)->reasoning += block.String("thinking").value_or("");
    } else {
      const std::string_view also = role == "assistant" ? ", thinking or tool_use"
                                    : role == "user"    ? " or tool_result"
                                                        : "";
      PS_RETURN_IF_ERROR(block.status());
      return InvalidArgument(field, ".type: expected text", also, ", found ",
                             FoundText(block.Any("type")), ": the model reads text only");
    }
    return block.Finish();
  }

  void AddCall(JsonFields* block) {
    const std::string id = block->NeededString("id"), name = block->NeededString("name");
    const Json* input = block->Needed("input", "an object");
    if (input != nullptr) input = block->Object("input");
    block->Ignore({"caller", "toolset_name"});
    Last("assistant")
        ->tool_calls.push_back(ToolCall(id, name, input == nullptr ? Json::object() : *input));
  }

  Status AddResult(JsonFields* block, const std::string& field) {
    std::string id = block->NeededString("tool_use_id");
    block->Bool("is_error");  // the content says so
    block->Ignore({"toolset_name"});
    std::string text;
    if (const Json* const content = block->Any("content")) {
      PS_ASSIGN_OR_RETURN(text, ContentText(*content, field + ".content", {"text"}));
    }
    messages_.push_back(
        {.role = "tool", .content = std::move(text), .name = "", .tool_call_id = std::move(id)});
    return Status();
  }

  std::vector<ChatMessage> messages_;
};

Result<std::vector<ChatMessage>> ToMessages(const Json* system, const Json& messages) {
  Conversation conversation;
  if (system != nullptr) {
    PS_ASSIGN_OR_RETURN(const std::string text, ContentText(*system, "system", {"text"}));
    if (!text.empty()) conversation.AddText("system", text);
  }
  PS_RETURN_IF_ERROR(CheckList(messages, "messages", "an array of messages"));
  for (size_t i = 0; i < messages.size(); ++i)
    PS_RETURN_IF_ERROR(conversation.Add(messages[i], StrCat("messages[", i, "]")));
  return conversation.Take();
}

// A tool in the form of chat completions.
Result<Json> ToFunction(const Json& tool, const std::string& field) {
  PS_RETURN_IF_ERROR(CheckObject(tool, field));
  JsonFields fields(tool, field + ".");
  const std::string type = fields.String("type").value_or("custom");
  if (type != "custom") {
    fields.Fail("type", StrCat("expected custom, found \"", type,
                               "\": the server has no tools of its own; describe the tool by its "
                               "name and input_schema"));
  }
  if (fields.Object("input_schema") == nullptr)
    fields.Fail("input_schema", "expected a JSON Schema, found none");
  AcceptCacheControl(&fields);
  fields.Ignore({"eager_input_streaming", "input_examples"});
  Refuse(&fields, {"defer_loading"}, "the model gets every tool");
  const Json* const callers = fields.Any("allowed_callers");
  if (callers != nullptr && *callers != Json::array({"direct"}))
    fields.Fail("allowed_callers", "expected [\"direct\"]: the server runs no programs");
  Json function;
  const auto copy = [&](const char* from, const char* to) {
    if (const Json* const value = fields.Any(from)) function[to] = *value;
  };
  copy("name", "name");
  copy("description", "description");
  copy("input_schema", "parameters");
  copy("strict", "strict");
  PS_RETURN_IF_ERROR(fields.Finish());
  return Json{{"type", "function"}, {"function", std::move(function)}};
}

Status ReadChoice(const Json& object, ToolUse* use) {
  JsonFields choice(object, "tool_choice.");
  const std::string type = choice.OneOf("type", {"auto", "any", "tool", "none"});
  use->parallel = !choice.Bool("disable_parallel_tool_use").value_or(false);
  const Json* const name = choice.Any("name");
  PS_RETURN_IF_ERROR(choice.Finish());
  if (type == "tool") return ChooseTool(name == nullptr ? Json() : *name, "tool_choice.name", use);
  if (type == "none") use->choice = ToolUse::Choice::kNone;
  if (type == "any") use->choice = ToolUse::Choice::kRequired;
  return CheckChoice(use);
}

ToolUse ReadMessagesTools(JsonFields* fields) {
  ToolUse use;
  if (const Json* const tools = fields->Any("tools"))
    fields->Merge(ReadToolList(*tools, {"", "input_schema"}, ToFunction, &use));
  if (const Json* const choice = fields->Object("tool_choice"))
    fields->Merge(ReadChoice(*choice, &use));
  return use;
}

// Without the field the model does not think, if its template has a choice. A model that does not think answers
// as without it.
ReasoningUse ReadThinking(JsonFields* fields, bool reasons, ChatOptions* options) {
  ReasoningUse use;
  const auto set = [&](bool thinks) {
    use.include = thinks;
    Json& variables = options->variables;
    if (variables.is_null()) variables = Json::object();
    if (!variables.contains("enable_thinking")) variables["enable_thinking"] = thinks;
    return use;
  };
  const Json* const object = fields->Object("thinking");
  if (object == nullptr) return set(false);
  JsonFields thinking(*object, "thinking.");
  const std::string type =
      thinking.OneOf("type", {"disabled", "enabled", "adaptive", "between_tools"});
  thinking.Integer("budget_tokens", 0, kMaxInt32);
  thinking.Any("display");
  fields->Merge(thinking.Finish());
  if (type != "disabled" && !reasons) fields->Ignore({"thinking"});
  return set(type != "disabled");
}

}  // namespace

Result<CompletionJob> ToMessagesJob(const Json& body, const ServedModel& model,
                                    chat::HoldMemory hold) {
  CompletionJob job;
  v1::CompleteRequest& request = job.common;
  JsonFields fields(body);
  job.options.model = fields.String("model").value_or("");
  job.options.stream = fields.Bool("stream").value_or(false);
  ReadGeneration(&fields, &job);
  if (const auto stops = fields.Strings("stop_sequences")) {
    request.mutable_stop()->Add(stops->begin(), stops->end());
    job.options.Name("stop", "stop_sequences");
  }
  ReadOutputFormat(&fields, "output_config", "effort", &request);
  ReadBetaFormat(&fields, &request);
  job.options.grammar.output = OutputField(body);
  job.options.migrates = false;
  ReadMaxTokens(&fields, {"max_tokens"}, &job);
  AcceptCacheControl(&fields);
  Refuse(&fields, {"thread"}, "the server keeps no messages; send the whole conversation");
  ChatOptions options;
  options.hold = std::move(hold);
  ReadTemplateVariables(&fields, &options);
  const ReasoningUse reasoning = ReadThinking(&fields, model.reasoning.has_value(), &options);
  ToolUse tools = ReadMessagesTools(&fields);
  const Json* const system = fields.Any("system");
  const Json* const messages = fields.Needed("messages", "an array of messages");
  job.options.Name("prompt", "messages");
  PS_RETURN_IF_ERROR(fields.Finish());
  PS_ASSIGN_OR_RETURN(const std::vector<ChatMessage> list, ToMessages(system, *messages));
  // An answer that has begun is continued.
  if (list.back().role == "assistant") {
    if (!list.back().tool_calls.is_null()) {
      return InvalidArgument(
          "messages: expected a tool_result after the tool_use of the last message, found none");
    }
    if (list.back().content.find_first_not_of(" \t\r\n") == std::string::npos) {
      return InvalidArgument(
          "messages: expected text in a last message of the assistant, which the answer continues, "
          "found none");
    }
    options.continue_final_message = true;
    options.add_generation_prompt = false;
  }
  PS_RETURN_IF_ERROR(SetChat(list, std::move(options), std::move(tools), reasoning, model, &job));
  return job;
}

}  // namespace polysketch
