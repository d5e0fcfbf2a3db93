// The requests of POST /v1/messages and /v1/messages/count_tokens. docs/anthropic-api.md lists the
// parameters.
#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "server/chat/chat_template.h"
#include "server/openai/completion_request.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// INVALID_ARGUMENT names the field. `body`: of ParseCompletionBody. `hold`: ChatOptions::hold.
Result<CompletionJob> ToMessagesJob(const nlohmann::ordered_json& body, const ServedModel& model,
                                    chat::HoldMemory hold = nullptr);

}  // namespace polysketch
