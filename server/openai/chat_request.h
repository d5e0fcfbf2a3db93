// The requests of POST /v1/chat/completions.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/chat/chat_template.h"
#include "server/openai/completion_request.h"
#include "server/openai/json_fields.h"
#include "server/openai/reasoning.h"
#include "server/openai/tools.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// The chat template of the model. FAILED_PRECONDITION, of the field that has the messages, without
// one.
Result<const ChatTemplate*> RequireChatTemplate(const ServedModel& model, std::string_view field);

// The text of a content: a string, or an array of parts of the types `text_types`, which become
// lines. INVALID_ARGUMENT names the field after `field`.
Result<std::string> ContentText(const nlohmann::ordered_json& content, const std::string& field,
                                std::initializer_list<std::string_view> text_types);

// Messages of the API: objects with role and content (ContentText). The role developer becomes
// system. `tools`: messages may have calls, and be results of tools.
Result<std::vector<ChatMessage>> ToChatMessages(const nlohmann::ordered_json& messages,
                                                const std::string& field,
                                                std::initializer_list<std::string_view> text_types,
                                                bool tools = false);

// The same of one message.
Result<ChatMessage> ToChatMessage(const nlohmann::ordered_json& object, const std::string& field,
                                  std::initializer_list<std::string_view> text_types,
                                  bool tools = false);

// Reads chat_template_kwargs into ChatOptions::variables.
void ReadTemplateVariables(JsonFields* fields, ChatOptions* options);
// Sets the prompt of a chat.
void SetChatPrompt(const std::vector<int32_t>& ids, CompletionJob* job);
// The same of a whole conversation, with its tools. The prefix cache stores the states where other
// conversations may go on in another way, unless the request names others.
Status SetConversation(std::vector<ChatMessage> messages, ChatOptions options,
                       const ServedModel& model, CompletionJob* job);

// Writes tools into the messages (DescribeTools) for a model whose template takes none, unless
// --tool-format names a form: the operator says then that the model knows them. `begins`: the
// messages begin the conversation.
Status WriteTools(const ServedModel& model, bool begins, std::vector<ChatMessage>* messages,
                  ChatOptions* options);

// Makes the prompt of a conversation, and binds the output to calls of the tools after its
// reasoning.
Status SetChat(std::vector<ChatMessage> messages, ChatOptions options, ToolUse tools,
               const ReasoningUse& reasoning, const ServedModel& model, CompletionJob* job);

// Fails for each of the fields that is present, and neither false nor empty.
void Refuse(JsonFields* fields, std::initializer_list<const char*> names, const std::string& why);

// INVALID_ARGUMENT names the field. `hold`: ChatOptions::hold.
Result<CompletionJob> ToChatJob(const nlohmann::ordered_json& body, const ServedModel& model,
                                chat::HoldMemory hold = nullptr);

}  // namespace polysketch
