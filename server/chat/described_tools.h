// Tools for chat templates that know nothing of them: as text of messages.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "server/chat/chat_template.h"

namespace polysketch {

// Makes text of what such a template does not take:
// - `tools` (null: they are not described), an array of {"type": "function", "function": {...}}: a
//   paragraph that says what they are and that a call has ToolForm::kJson. The system message has
//   it, which is made if there is none; the first message of the user where the template does not
//   take system messages.
// - Calls: lines of the answer, in that form.
// - Their results: a message of the user, "The tool NAME returned: " and the content, with the one
//   of the user that follows; where none does, with a last line that asks for the answer.
// `hold`: ChatOptions::hold.
Status DescribeTools(const nlohmann::ordered_json& tools, bool takes_system,
                     const chat::HoldMemory& hold, std::vector<ChatMessage>* messages);

}  // namespace polysketch
