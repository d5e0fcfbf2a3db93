#include "server/openai/responses_request.h"

#include <utility>
#include <vector>

#include "server/openai/chat_request.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

using nlohmann::json;

// The messages of a turn: the instructions, then the input, a string or an array of messages.
Result<std::vector<ChatMessage>> ToTurn(const json& input, const std::string& instructions) {
  std::vector<ChatMessage> messages;
  if (!instructions.empty()) messages.push_back({"system", instructions, ""});
  if (input.is_string()) {
    messages.push_back({"user", input.get<std::string>(), ""});
    return messages;
  }
  for (size_t i = 0; input.is_array() && i < input.size(); ++i) {
    if (!input[i].is_object()) continue;  // ToChatMessages refuses it
    const json type = input[i].value("type", json("message"));
    if (type != "message")
      return InvalidArgument("input[", i, "].type: expected message, found ", type.dump());
  }
  PS_ASSIGN_OR_RETURN(const std::vector<ChatMessage> items,
                      ToChatMessages(input, "input", {"input_text", "output_text", "text"}));
  messages.insert(messages.end(), items.begin(), items.end());
  return messages;
}

void RefuseOthers(JsonFields* fields) {
  Refuse(fields, {"tools", "max_tool_calls"}, "the server calls no tools");
  RefuseToolChoice(fields, "tool_choice");
  Refuse(fields, {"background", "conversation", "prompt", "include"},
         "the server has no such parameter");
  const json* truncation = fields->Any("truncation");
  if (truncation != nullptr && *truncation != "disabled")
    fields->Fail("truncation", "expected disabled: the state of a session has constant size");
  if (fields->Integer("top_logprobs", 0, 20).value_or(0) != 0)
    fields->Fail("top_logprobs", "expected 0: /v1/chat/completions returns log-probabilities");
}

json OrNull(const json& body, const char* name) {
  return body.contains(name) ? body.at(name) : json();
}

nlohmann::ordered_json Echo(const json& body, bool store) {
  nlohmann::ordered_json echo;
  echo["instructions"] = OrNull(body, "instructions");
  echo["max_output_tokens"] = OrNull(body, "max_output_tokens");
  echo["metadata"] = body.contains("metadata") ? body["metadata"] : json::object();
  echo["parallel_tool_calls"] = false;
  echo["previous_response_id"] = OrNull(body, "previous_response_id");
  echo["store"] = store;
  echo["temperature"] = OrNull(body, "temperature");
  echo["text"] = EchoedText(body);
  echo["tool_choice"] = "none";
  echo["tools"] = json::array();
  echo["top_p"] = OrNull(body, "top_p");
  echo["truncation"] = "disabled";
  return echo;
}

}  // namespace

Result<std::string> SessionOfResponse(const std::string& id, const std::string& field) {
  if (id.starts_with(kResponseIdPrefix) && id.size() > kResponseIdPrefix.size())
    return id.substr(kResponseIdPrefix.size());
  return NotFound(field, ": expected the id of a stored response, found \"", id, "\"");
}

Result<ResponseJob> ToResponseJob(const json& body, const ServedModel& model) {
  ResponseJob response;
  CompletionOptions& options = response.job.options;
  JsonFields fields(body);
  v1::CompleteRequest request;
  options.model = fields.String("model").value_or("");
  ReadStreaming(&fields, &options);
  ReadGeneration(&fields, &request);
  ReadResponsesText(&fields, &request);
  RefuseOthers(&fields);
  const std::string instructions = fields.String("instructions").value_or("");
  const std::string previous = fields.String("previous_response_id").value_or("");
  response.store = fields.Bool("store").value_or(true);
  fields.Object("metadata");
  ChatOptions chat_options;
  ReadTemplateVariables(&fields, &chat_options);
  if (const auto limit = fields.Integer("max_output_tokens", 0, kMaxInt32))
    request.set_max_tokens(static_cast<int32_t>(*limit));
  fields.Ignore({"parallel_tool_calls", "reasoning", "prompt_cache_options"});
  const json* input = fields.Any("input");
  if (input == nullptr)
    fields.Fail("input", "expected a string or an array of messages, found none");
  if (!previous.empty() && !instructions.empty()) {
    fields.Fail("instructions",
                "expected none beside previous_response_id: the session holds those of its first "
                "response");
  }
  PS_RETURN_IF_ERROR(fields.Finish());
  PS_ASSIGN_OR_RETURN(const std::vector<ChatMessage> turn, ToTurn(*input, instructions));
  PS_ASSIGN_OR_RETURN(const ChatTemplate* chat_template, RequireChatTemplate(model));
  if (!previous.empty()) {
    PS_ASSIGN_OR_RETURN(response.previous_session,
                        SessionOfResponse(previous, "previous_response_id"));
    if (!chat_template->appends().ok()) {
      return FailedPrecondition("previous_response_id: ", chat_template->appends().message(),
                                "; send the whole conversation as input");
    }
  }
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      previous.empty() ? chat_template->Encode(turn, chat_options)
                                       : chat_template->EncodeTurn(turn, chat_options));
  SetChatPrompt(ids, *chat_template, &request);
  response.turn_end = chat_template->turn_end();
  response.echo = Echo(body, response.store);
  response.job.requests.push_back(std::move(request));
  return response;
}

}  // namespace polysketch
