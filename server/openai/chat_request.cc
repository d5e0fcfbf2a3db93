#include "server/openai/chat_request.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "server/chat/described_tools.h"
#include "server/chat/tool_form.h"
#include "server/convert/status_map.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

void ReadLogprobs(JsonFields* fields, CompletionOptions* options, v1::CompleteRequest* request) {
  options->logprobs = fields->Bool("logprobs").value_or(false);
  const auto top = fields->Integer("top_logprobs", 0, 20);
  if (top.has_value() && !options->logprobs)
    return fields->Fail("top_logprobs", "expected \"logprobs\": true beside it");
  if (options->logprobs) request->set_logprobs(static_cast<int32_t>(top.value_or(0)));
}

ChatOptions ReadChatOptions(JsonFields* fields) {
  ChatOptions options;
  ReadTemplateVariables(fields, &options);
  options.continue_final_message = fields->Bool("continue_final_message").value_or(false);
  options.add_generation_prompt =
      fields->Bool("add_generation_prompt").value_or(!options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt)
    fields->Fail("continue_final_message", "expected \"add_generation_prompt\": false beside it");
  return options;
}

}  // namespace

Result<std::string> ContentText(const Json& content, const std::string& field,
                                std::initializer_list<std::string_view> text_types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    return InvalidArgument(field, ": expected a string or an array of parts, found ",
                           JsonTypeName(content));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string name = StrCat(field, "[", i, "]");
    PS_RETURN_IF_ERROR(CheckObject(content[i], name));
    JsonFields part(content[i], name + ".");
    const std::string type = part.String("type").value_or("");
    PS_RETURN_IF_ERROR(part.status());
    if (std::find(text_types.begin(), text_types.end(), type) == text_types.end()) {
      return InvalidArgument(name, ".type: expected ", *text_types.begin(), ", found ",
                             FoundText(part.Any("type")), ": the model reads text only");
    }
    const std::string value = part.NeededString("text");
    part.Ignore({"annotations", "cache_control", "citations", "logprobs"});
    PS_RETURN_IF_ERROR(part.Finish());
    text += (i == 0 ? "" : "\n") + value;
  }
  return text;
}

Result<ChatMessage> ToChatMessage(const Json& object, const std::string& field,
                                  std::initializer_list<std::string_view> text_types, bool tools) {
  PS_RETURN_IF_ERROR(CheckObject(object, field));
  JsonFields fields(object, field + ".");
  ChatMessage message;
  std::vector<std::string_view> roles = {"system", "developer", "user", "assistant"};
  if (tools) roles.emplace_back("tool");
  message.role = fields.OneOf("role", roles);
  if (message.role == "developer") message.role = "system";
  const bool of_tool = tools && message.role == "tool";
  message.name = fields.String("name").value_or("");
  if (of_tool) message.tool_call_id = fields.String("tool_call_id").value_or("");
  const bool may_call = tools && message.role == "assistant";
  const Json* const calls = may_call ? fields.Any("tool_calls") : nullptr;
  if (calls != nullptr) {
    Result<Json> list = ToToolCalls(*calls, field + ".tool_calls");
    fields.Merge(list.status());
    if (list.ok()) message.tool_calls = *std::move(list);
  }
  if (may_call) {
    // The name of DeepSeek, and of later versions of vLLM.
    for (const char* const name : {"reasoning_content", "reasoning"})
      if (const auto text = fields.String(name)) message.reasoning = *text;
  } else {
    Refuse(&fields, {"tool_calls"}, "messages of the assistant in chat completions have calls");
  }
  if (!of_tool)
    Refuse(&fields, {"tool_call_id"}, "messages of tools in chat completions answer calls");
  Refuse(&fields, {"function_call", "audio"}, "the server reads text and tool_calls only");
  fields.Ignore({"refusal", "annotations", "type", "id", "status", "phase", "cache_control"});
  if (const Json* content = fields.Any("content")) {
    Result<std::string> text = ContentText(*content, field + ".content", text_types);
    fields.Merge(text.status());
    if (text.ok()) message.content = *std::move(text);
  } else if (calls == nullptr && message.reasoning.empty()) {
    // Clients write null beside an empty list of calls too.
    fields.Fail("content", "expected a string or an array of parts, found none");
  }
  PS_RETURN_IF_ERROR(fields.Finish());
  return message;
}

Result<const ChatTemplate*> RequireChatTemplate(const ServedModel& model, std::string_view field) {
  if (model.chat_template != nullptr) return model.chat_template;
  return FailedPrecondition(
      field, ": expected a model with a chat template, found none: ", model.no_chat_template);
}

Result<std::vector<ChatMessage>> ToChatMessages(const Json& messages, const std::string& field,
                                                std::initializer_list<std::string_view> text_types,
                                                bool tools) {
  PS_RETURN_IF_ERROR(CheckList(messages, field, "an array of messages"));
  std::vector<ChatMessage> list;
  for (size_t i = 0; i < messages.size(); ++i) {
    PS_ASSIGN_OR_RETURN(ChatMessage message,
                        ToChatMessage(messages[i], StrCat(field, "[", i, "]"), text_types, tools));
    list.push_back(std::move(message));
  }
  return list;
}

void ReadTemplateVariables(JsonFields* fields, ChatOptions* options) {
  if (const Json* variables = fields->Object("chat_template_kwargs"))
    options->variables = *variables;
  if (const Json* const documents = fields->Any("documents")) {
    if (!documents->is_array())
      return fields->Fail("documents",
                          StrCat("expected an array, found ", JsonTypeName(*documents)));
    if (options->variables.is_null()) options->variables = Json::object();
    options->variables["documents"] = *documents;
  }
}

void SetChatPrompt(const std::vector<int32_t>& ids, CompletionJob* job) {
  job->options.chat = true;
  job->common.mutable_prompt()->mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
}

Status SetConversation(std::vector<ChatMessage> messages, ChatOptions options,
                       const ServedModel& model, CompletionJob* job) {
  v1::CompleteRequest* const request = &job->common;
  PS_ASSIGN_OR_RETURN(const ChatTemplate* chat_template, RequireChatTemplate(model, "messages"));
  job->options.turn_ends = chat_template->stops();
  request->mutable_stop()->Add(chat_template->stops().begin(), chat_template->stops().end());
  PS_RETURN_IF_ERROR(WriteTools(model, /*begins=*/true, &messages, &options));
  std::vector<int64_t> beginnings;
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      chat_template->Encode(messages, options, &beginnings));
  SetChatPrompt(ids, job);
  if (model.prefix_cache == nullptr || request->cache().points_size() > 0) return Status();
  for (const int64_t tokens : beginnings) {
    if (tokens < model.prefix_cache->options().min_tokens) continue;
    request->mutable_cache()->add_points(tokens);
  }
  return Status();
}

Status WriteTools(const ServedModel& model, bool begins, std::vector<ChatMessage>* messages,
                  ChatOptions* options) {
  const ChatTemplate* const chat_template = model.chat_template;
  if (chat_template == nullptr || chat_template->takes_tools() || model.tool_form_named)
    return Status();
  const Json tools = std::exchange(options->tools, nullptr);
  return DescribeTools(begins ? tools : Json(), chat_template->takes_system(), options->hold,
                       messages);
}

Status SetChat(std::vector<ChatMessage> messages, ChatOptions options, ToolUse tools,
               const ReasoningUse& reasoning, const ServedModel& model, CompletionJob* job) {
  options.tools = std::move(tools.list);
  PS_RETURN_IF_ERROR(SetConversation(std::move(messages), std::move(options), model, job));
  v1::Prompt* const prompt = job->common.mutable_prompt();
  const int tokens = prompt->tokens().ids_size();
  TruncatePrompt(model, *job, prompt);
  // They are places of the whole prompt.
  if (prompt->tokens().ids_size() < tokens) job->common.mutable_cache()->clear_points();
  PS_RETURN_IF_ERROR(BindTools(tools, model, job));
  return BindReasoning(reasoning, model, job);
}

void Refuse(JsonFields* fields, std::initializer_list<const char*> names, const std::string& why) {
  for (const char* name : names) {
    const Json* value = fields->Any(name);
    const bool empty =
        value == nullptr || *value == false || (value->is_structured() && value->empty());
    if (!empty) fields->Fail(name, StrCat("expected none: ", why));
  }
}

namespace {

// A template and the model with it.
struct WithTemplate {
  std::unique_ptr<ChatTemplate> chat_template;
  ServedModel model;
};

// Of a template that a request has.
Result<WithTemplate> WithRequestTemplate(const std::string& text, const ServedModel& model,
                                         const ChatOptions& options) {
  if (!model.trusts_request_template) {
    return InvalidArgument(
        "chat_template: expected none: the template is the server's "
        "(--trust-request-chat-template accepts that of a request)");
  }
  PS_RETURN_IF_ERROR(RequireTokenizer(model.rules, "chat_template"));
  auto made =
      ChatTemplate::MakeForRequest(text, model.chat_template, model.rules.tokenizer, options);
  if (!made.ok()) return Prefixed("chat_template: ", made.status());
  WithTemplate with = {*std::move(made), model};
  with.model.chat_template = with.chat_template.get();
  if (!model.tool_form_named) {
    const bool takes_tools = with.chat_template->takes_tools();
    with.model.tool_form = takes_tools ? DetectToolForm(text) : std::nullopt;
  }
  return with;
}

}  // namespace

Result<CompletionJob> ToChatJob(const Json& body, const ServedModel& model, chat::HoldMemory hold) {
  CompletionJob job;
  JsonFields fields(body);
  v1::CompleteRequest& request = job.common;
  ReadCompletion(&fields, body, &job);
  ReadLogprobs(&fields, &job.options, &request);
  ReadPromptLogprobs(&fields, &job.options, &request);
  ChatOptions options = ReadChatOptions(&fields);
  options.hold = std::move(hold);
  ReadMaxTokens(&fields, {"n_predict", "max_tokens", "max_completion_tokens"}, &job);
  const bool echo = fields.Bool("echo").value_or(false);
  if (fields.Bool("add_special_tokens").value_or(false))
    fields.Fail("add_special_tokens", "expected false: the template writes control pieces");
  const std::string template_text = fields.String("chat_template").value_or("");
  ToolUse tools = ReadTools(&fields);
  const ReasoningUse reasoning = ReadReasoning(&fields, /*nested=*/false, &options);
  const Json* const messages = fields.Needed("messages", "an array of messages");
  job.options.Name("prompt", "messages");
  PS_RETURN_IF_ERROR(fields.Finish());
  PS_ASSIGN_OR_RETURN(const std::vector<ChatMessage> list,
                      ToChatMessages(*messages, "messages", {"text"}, /*tools=*/true));
  // The answer continues this message.
  if (echo && list.back().role == "assistant") job.options.prefix = list.back().content;
  std::optional<WithTemplate> with;
  if (!template_text.empty()) {
    options.tools = tools.list;
    PS_ASSIGN_OR_RETURN(with, WithRequestTemplate(template_text, model, options));
  }
  PS_RETURN_IF_ERROR(SetChat(list, std::move(options), std::move(tools), reasoning,
                             with ? with->model : model, &job));
  return job;
}

}  // namespace polysketch
