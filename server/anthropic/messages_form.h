// The form of /v1/messages: blocks of text and calls of tools, whole or as typed events.
#pragma once

#include <memory>

#include "server/openai/answer_form.h"

namespace polysketch {

std::unique_ptr<AnswerForm> NewMessagesForm(const CompletionOptions& options, AnswerHeader header);

}  // namespace polysketch
