// The form of /v1/responses: messages of text, reasoning and calls of tools, whole or as typed events.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/openai/answer_form.h"

namespace polysketch {

// `id`: of the response. `echo`: fields of the request that the response repeats, an object as text.
// `options`: how calls and reasoning in the output are read.
// `keep`: gets the response, as JSON, before it is sent; null: none.
std::unique_ptr<AnswerForm> NewResponseForm(
    const std::string& id, std::string echo, AnswerHeader header, const CompletionOptions& options,
    std::function<void(const std::string& response)> keep = nullptr);

}  // namespace polysketch
