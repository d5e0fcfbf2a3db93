// The requests of /v1/messages and /v1/messages/count_tokens, and the form of the answers.
// docs/anthropic-api.md lists the parameters.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "server/chat/chat_template.h"
#include "server/openai/answer_form.h"
#include "server/openai/completion_request.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// INVALID_ARGUMENT names the field. `body`: of ParseCompletionBody. `hold`: ChatOptions::hold.
Result<CompletionJob> ToMessagesJob(const nlohmann::ordered_json& body, const ServedModel& model,
                                    chat::HoldMemory hold = nullptr);

// Blocks of text, reasoning and calls of tools, whole or as typed events.
std::unique_ptr<AnswerForm> NewMessagesForm(const CompletionOptions& options, AnswerHeader header);

}  // namespace polysketch
