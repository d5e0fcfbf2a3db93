// The form of /v1/responses: one message of text, whole or as typed events.
#pragma once

#include <memory>
#include <string>

#include "server/openai/answer_form.h"

namespace polysketch {

// `id`: of the response. `echo`: fields of the request that the response repeats, an object as text.
std::unique_ptr<AnswerForm> NewResponseForm(const std::string& id, std::string echo,
                                            AnswerHeader header);

}  // namespace polysketch
