#include "server/openai/responses_request.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "server/credentials/api_keys.h"
#include "server/http/json_text.h"
#include "server/openai/chat_request.h"
#include "server/openai/reasoning.h"
#include "server/openai/structured_output.h"
#include "server/openai/tools.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDigestDigits = 16;  // of ResponseId

// Reasoning, a message and calls of the assistant are one message of the template.
ChatMessage* AssistantMessage(std::vector<ChatMessage>* messages) {
  if (messages->empty() || messages->back().role != "assistant")
    messages->push_back({.role = "assistant", .content = "", .name = ""});
  return &messages->back();
}

Status AddReasoning(const Json& item, const std::string& field,
                    std::vector<ChatMessage>* messages) {
  JsonFields fields(item, field + ".");
  fields.Ignore({"type", "id", "status", "summary", "encrypted_content"});
  std::string text;
  const Json* const content = fields.Any("content");
  if (content != nullptr && !content->is_array())
    fields.Fail("content", StrCat("expected an array, found ", JsonTypeName(*content)));
  const size_t parts = content != nullptr && content->is_array() ? content->size() : 0;
  for (size_t i = 0; i < parts && fields.status().ok(); ++i) {
    const Json& part = (*content)[i];
    const std::string name = StrCat(field, ".content[", i, "]");
    fields.Merge(CheckObject(part, name));
    if (!part.is_object()) break;
    JsonFields of_part(part, name + ".");
    text += of_part.NeededString("text");
    fields.Merge(of_part.status());
  }
  PS_RETURN_IF_ERROR(fields.Finish());
  // Reasoning begins a message.
  if (!messages->empty() && messages->back().role == "assistant" &&
      messages->back().tool_calls.is_null() && !messages->back().content.empty())
    messages->push_back({.role = "assistant", .content = "", .name = ""});
  AssistantMessage(messages)->reasoning += text;
  return Status();
}

// A call belongs to the message of the assistant before it.
Status AddCall(const Json& item, const std::string& field, std::vector<ChatMessage>* messages) {
  JsonFields fields(item, field + ".");
  fields.Ignore({"type", "id", "status"});
  const std::string id = fields.String("call_id").value_or("");
  const std::string name = fields.String("name").value_or("");
  if (name.empty()) fields.Fail("name", "expected the name of a tool, found none");
  Json arguments = ReadArguments(&fields, "arguments");
  PS_RETURN_IF_ERROR(fields.Finish());
  AssistantMessage(messages)->tool_calls.push_back(ToolCall(id, name, std::move(arguments)));
  return Status();
}

Status AddItem(const Json& item, const std::string& field, std::vector<ChatMessage>* messages) {
  const Json* const named = MemberOf(item, "type");
  const Json type = named == nullptr ? Json("message") : *named;
  if (type == "function_call") return AddCall(item, field, messages);
  if (type == "reasoning") return AddReasoning(item, field, messages);
  Json object = item;
  if (type == "function_call_output") {
    JsonFields fields(item, field + ".");
    fields.Ignore({"type", "id", "status"});
    const std::string id = fields.String("call_id").value_or("");
    const Json* const output = fields.Needed("output", "a string");
    PS_RETURN_IF_ERROR(fields.Finish());
    object = {{"role", "tool"}, {"tool_call_id", id}, {"content", *output}};
  } else if (type != "message") {
    return InvalidArgument(
        field, ".type: expected message, reasoning, function_call or function_call_output, found ",
        FoundText(&type));
  }
  const bool of_tool = type != "message";
  // The first is named where another type is found.
  const bool answers = object.value("role", Json()) == "assistant";
  Result<ChatMessage> read = ToChatMessage(
      object, field,
      {answers ? "output_text" : "input_text", answers ? "input_text" : "output_text", "text"},
      of_tool);
  if (!read.ok() && of_tool) {
    const std::string content = field + ".content", output = field + ".output";
    return Renamed(read.status(), {{content, output}});
  }
  PS_ASSIGN_OR_RETURN(ChatMessage message, std::move(read));
  // The message after its reasoning.
  ChatMessage* const last = messages->empty() ? nullptr : &messages->back();
  if (last != nullptr && message.role == "assistant" && last->role == "assistant" &&
      last->content.empty() && last->tool_calls.is_null() && !last->reasoning.empty()) {
    last->content = std::move(message.content);
  } else {
    messages->push_back(std::move(message));
  }
  return Status();
}

// The messages of a turn: the instructions, then the input, a string or an array of messages.
Result<std::vector<ChatMessage>> ToTurn(const Json& input, const std::string& instructions) {
  std::vector<ChatMessage> messages;
  if (!instructions.empty()) messages.push_back({"system", instructions, ""});
  if (input.is_string()) {
    messages.push_back({"user", input.get<std::string>(), ""});
    return messages;
  }
  PS_RETURN_IF_ERROR(CheckList(input, "input", "a string or an array of items"));
  for (size_t i = 0; i < input.size(); ++i) {
    const std::string field = StrCat("input[", i, "]");
    PS_RETURN_IF_ERROR(CheckObject(input[i], field));
    PS_RETURN_IF_ERROR(AddItem(input[i], field, &messages));
  }
  return messages;
}

// SetConversation; where prompt and max_tokens exceed the context limit, without the oldest turns,
// as few as may be. Messages of the system before the first turn stay, and so does the last turn.
Status SetTruncated(const std::vector<ChatMessage>& messages, const ChatOptions& options,
                    const ServedModel& model, CompletionJob* job) {
  const v1::CompleteRequest bare = job->common;
  const int64_t limit = model.description.context_limit();
  const auto fits = [&] {
    return job->common.prompt().tokens().ids_size() + std::max(1, bare.max_tokens()) <= limit;
  };
  PS_RETURN_IF_ERROR(SetConversation(messages, options, model, job));
  if (limit == 0 || fits()) return Status();
  const auto first =
      std::ranges::find_if(messages, [](const auto& m) { return m.role != "system"; });
  std::vector<std::ptrdiff_t> turns;  // where they begin, but for the first
  for (auto at = first; at != messages.end(); ++at) {
    if (at != first && at->role == "user") turns.push_back(at - messages.begin());
  }
  const auto set_from = [&](std::ptrdiff_t begin) {
    std::vector<ChatMessage> kept(messages.begin(), first);
    kept.insert(kept.end(), messages.begin() + begin, messages.end());
    job->common = bare;
    return SetConversation(kept, options, model, job);
  };
  // The first turn from which on the rest fits; the last one if none does.
  size_t low = 0, high = turns.empty() ? 0 : turns.size() - 1;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    PS_RETURN_IF_ERROR(set_from(turns[middle]));
    fits() ? high = middle : low = middle + 1;
  }
  return turns.empty() ? Status() : set_from(turns[low]);
}

// What may be included in items that the server never makes is accepted: there is none.
void RefuseInclude(JsonFields* fields) {
  constexpr std::string_view kOfOtherItems[] = {"reasoning.encrypted_content",
                                                "code_interpreter_call.outputs",
                                                "computer_call_output.output.image_url",
                                                "file_search_call.results",
                                                "message.input_image.image_url",
                                                "web_search_call.action.sources",
                                                "web_search_call.results"};
  const auto include = fields->Strings("include");
  if (!include.has_value()) return;
  for (const std::string& name : *include) {
    if (std::ranges::find(kOfOtherItems, name) == std::end(kOfOtherItems)) {
      return fields->Fail("include",
                          StrCat("expected reasoning.encrypted_content and other parts of "
                                 "items that the server does not make, found \"",
                                 name, "\""));
    }
  }
}

// 16 hexadecimal digits; empty for neither instructions nor tools.
std::string DigestOf(const std::string& instructions, const ToolUse& tools) {
  if (instructions.empty() && tools.list.empty()) return "";
  const Sha256 hash = Sha256Of(
      tools.list.empty() ? instructions : StrCat(instructions, "\n", JsonText(tools.list)));
  std::string digest;
  for (size_t i = 0; i < kDigestDigits / 2; ++i) {
    digest += "0123456789abcdef"[hash[i] >> 4];
    digest += "0123456789abcdef"[hash[i] & 15];
  }
  return digest;
}

void RefuseOthers(JsonFields* fields) {
  RefuseInclude(fields);
  if (fields->Integer("top_logprobs", 0, 20).value_or(0) != 0)
    fields->Fail("top_logprobs", "expected 0: /v1/chat/completions returns log-probabilities");
}

// Each response repeats the metadata. The limits are OpenAI's.
void CheckMetadata(JsonFields* fields) {
  constexpr size_t kMaxPairs = 16, kMaxKeyBytes = 256,
                   kMaxValueBytes = 2048;  // 64 and 512 characters
  const Json* metadata = fields->Object("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kMaxPairs) {
    return fields->Fail("metadata",
                        StrCat("expected at most ", kMaxPairs, " keys, found ", metadata->size()));
  }
  for (const auto& [key, value] : metadata->items()) {
    if (key.size() > kMaxKeyBytes) {
      return fields->Fail("metadata", StrCat("expected keys of at most ", kMaxKeyBytes,
                                             " bytes, found one of ", key.size()));
    }
    if (!value.is_string()) {
      return fields->Fail("metadata",
                          StrCat("expected strings as values, found ", JsonTypeName(value)));
    }
    if (const size_t size = value.get_ref<const std::string&>().size(); size > kMaxValueBytes) {
      return fields->Fail("metadata", StrCat("expected values of at most ", kMaxValueBytes,
                                             " bytes, found one of ", size));
    }
  }
}

Json OrNull(const Json& body, const char* name) {
  return body.contains(name) ? body.at(name) : Json();
}

// Text, which takes less memory than values.
std::string Echo(const Json& body, bool store, bool truncates, const ToolUse& tools) {
  Json echo;
  echo["background"] = false;
  echo["instructions"] = OrNull(body, "instructions");
  echo["max_output_tokens"] = OrNull(body, "max_output_tokens");
  const Json* const metadata = MemberOf(body, "metadata");
  echo["metadata"] = metadata == nullptr ? Json::object() : *metadata;
  echo["parallel_tool_calls"] = tools.parallel;
  echo["previous_response_id"] = OrNull(body, "previous_response_id");
  echo["store"] = store;
  echo["temperature"] = OrNull(body, "temperature");
  echo["text"] = EchoedText(body);
  echo["tool_choice"] = OrNull(body, "tool_choice");
  if (echo["tool_choice"].is_null()) echo["tool_choice"] = tools.list.empty() ? "none" : "auto";
  echo["tools"] = Json::array();
  for (const Json& tool : tools.list) {
    Json flat = tool["function"];
    flat["type"] = "function";
    echo["tools"].push_back(std::move(flat));
  }
  echo["top_p"] = OrNull(body, "top_p");
  echo["truncation"] = truncates ? "auto" : "disabled";
  return JsonText(echo);
}

}  // namespace

std::string ResponseId::ToString() const {
  return StrCat(kResponseIdPrefix, session, digest.empty() ? "" : "_", digest);
}

Result<ResponseId> ParseResponseId(const std::string& id, const std::string& field) {
  if (id.starts_with(kResponseIdPrefix) && id.size() > kResponseIdPrefix.size()) {
    ResponseId parsed{.session = id.substr(kResponseIdPrefix.size())};
    const size_t end = parsed.session.rfind('_');
    if (end != std::string::npos && parsed.session.size() - end - 1 == kDigestDigits) {
      parsed.digest = parsed.session.substr(end + 1);
      parsed.session.resize(end);
    }
    return parsed;
  }
  return NotFound(field, ": expected the id of a stored response, found \"", id, "\"");
}

Result<ResponseJob> ToResponseJob(const Json& body, const ServedModel& model,
                                  chat::HoldMemory hold) {
  ResponseJob response;
  CompletionOptions& options = response.job.options;
  JsonFields fields(body);
  v1::CompleteRequest& request = response.job.common;
  options.model = fields.String("model").value_or("");
  ReadStreaming(&fields, &options);
  ReadGeneration(&fields, &response.job);
  ReadOutputFormat(&fields, "text", "verbosity", &request);
  options.grammar.output = OutputField(body);
  options.migrates = false;  // the state of the turn is in the store, and the session is as it was
  RefuseOthers(&fields);
  // Whether messages may be dropped where the conversation exceeds the context limit.
  const bool truncates = fields.OneOf("truncation", {"auto", "disabled"}, "disabled") == "auto";
  const std::string instructions = fields.String("instructions").value_or("");
  const std::string previous = fields.String("previous_response_id").value_or("");
  response.store = fields.Bool("store").value_or(true);
  CheckMetadata(&fields);
  ChatOptions chat_options;
  chat_options.hold = std::move(hold);
  ReadTemplateVariables(&fields, &chat_options);
  ReadMaxTokens(&fields, {"max_output_tokens"}, &response.job);
  ToolUse tools = ReadTools(&fields, /*flat=*/true);
  const ReasoningUse reasoning = ReadReasoning(&fields, /*nested=*/true, &chat_options);
  const Json* const input = fields.Needed("input", "a string or an array of messages");
  options.Name("prompt", "input");
  PS_RETURN_IF_ERROR(fields.Finish());
  response.id.digest = DigestOf(instructions, tools);
  PS_ASSIGN_OR_RETURN(std::vector<ChatMessage> turn,
                      ToTurn(*input, previous.empty() ? instructions : ""));
  PS_ASSIGN_OR_RETURN(const ChatTemplate* chat_template, RequireChatTemplate(model, "input"));
  if (!previous.empty()) {
    PS_ASSIGN_OR_RETURN(response.previous, ParseResponseId(previous, "previous_response_id"));
    if (!response.id.digest.empty() && response.id.digest != response.previous.digest) {
      return InvalidArgument(
          tools.list.empty() ? "" : "tools and ",
          "instructions: expected those of the conversation that previous_response_id continues, "
          "or "
          "none, found others: the state of the conversation holds them; send the whole "
          "conversation "
          "as input");
    }
    response.id.digest = response.previous.digest;
    if (!chat_template->appends().ok()) {
      return FailedPrecondition("previous_response_id: ", chat_template->appends().message(),
                                "; send the whole conversation as input");
    }
  }
  response.echo = Echo(body, response.store, truncates, tools);
  chat_options.tools = std::move(tools.list);
  if (previous.empty()) {
    PS_RETURN_IF_ERROR(truncates ? SetTruncated(turn, chat_options, model, &response.job)
                                 : SetConversation(turn, chat_options, model, &response.job));
  } else {
    PS_RETURN_IF_ERROR(WriteTools(model, /*begins=*/false, &turn, &chat_options));
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        chat_template->EncodeTurn(turn, chat_options));
    SetChatPrompt(ids, &response.job);
  }
  PS_RETURN_IF_ERROR(BindTools(tools, model, &response.job));
  PS_RETURN_IF_ERROR(BindReasoning(reasoning, model, &response.job));
  response.turn_end = chat_template->turn_end();
  return response;
}

}  // namespace polysketch
