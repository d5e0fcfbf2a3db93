// The form of /v1/responses: messages of text and calls of tools, whole or as typed events.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/chat/tool_parser.h"
#include "server/openai/answer_form.h"

namespace polysketch {

// `id`: of the response. `echo`: fields of the request that the response repeats, an object as text.
// `tools`: how calls in the output are read; nullopt: all is text.
std::unique_ptr<AnswerForm> NewResponseForm(const std::string& id, std::string echo,
                                            AnswerHeader header, std::optional<ToolParsing> tools);

}  // namespace polysketch
