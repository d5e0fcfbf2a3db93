#include "server/chat/described_tools.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "server/chat/budget.h"
#include "server/chat/tool_form.h"
#include "server/chat/value.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

// As json.dumps of Python, in which models have learned JSON.
Result<std::string> TextOf(const Json& json, chat::Budget* budget) {
  PS_ASSIGN_OR_RETURN(const chat::Value value, chat::Value::FromJson(json));
  return chat::ToJson(value, chat::JsonForm(), budget);
}

void AddParagraph(std::string_view text, std::string* content) {
  if (!content->empty()) *content += "\n\n";
  *content += text;
}

Result<std::string> Description(const Json& tools, chat::Budget* budget) {
  std::string text =
      "You can call the following tools. Each is a JSON object with its name, what it does, and "
      "the JSON Schema of its parameters:\n";
  for (const Json& tool : tools) {
    PS_ASSIGN_OR_RETURN(const std::string function, TextOf(tool.at("function"), budget));
    text += function + '\n';
  }
  return text +
         "To call a tool, answer with a JSON object alone: {\"name\": NAME, \"arguments\": {...}}. "
         "Several calls are several objects, each on a line of its own. The results follow in the "
         "next message. Where no tool helps, answer as usual.";
}

// Adds the description where the template shows it.
void AddDescription(const std::string& text, bool takes_system,
                    std::vector<ChatMessage>* messages) {
  const char* const role = takes_system ? "system" : "user";
  const auto first =
      takes_system ? messages->begin() : std::ranges::find(*messages, role, &ChatMessage::role);
  if (first == messages->end() || first->role != role) {
    messages->insert(messages->begin(), {role, text, ""});
  } else if (takes_system) {
    AddParagraph(text, &first->content);
  } else {
    first->content = StrCat(text, "\n\n", first->content);
  }
}

Result<std::string> TextOfCalls(const Json& calls, chat::Budget* budget) {
  const ToolFraming& framing = FramingOf(ToolForm::kJson);
  std::string text;
  for (const Json& call : calls) {
    const Json& function = call.at("function");
    PS_ASSIGN_OR_RETURN(const std::string name, TextOf(function.at("name"), budget));
    PS_ASSIGN_OR_RETURN(const std::string arguments, TextOf(function.at("arguments"), budget));
    if (!text.empty()) text += framing.separator;
    // The framing has the quotes of the name.
    text += StrCat(framing.call[0], name.substr(1, name.size() - 2), framing.call[1], arguments,
                   framing.call[2]);
  }
  return text;
}

// Ends results that nothing of the user follows: without it small models repeat their call.
constexpr std::string_view kAnswer =
    "Now answer my question in words, unless you need another tool.";

// Makes a message of the user of the result of a tool: a role that the model has not learned is
// text that it repeats. `tools`: by the ids of calls.
void MakeResult(const std::map<std::string, std::string>& tools, ChatMessage* message) {
  const auto found = tools.find(message->tool_call_id);
  const std::string& name = found == tools.end() ? message->name : found->second;
  message->content.insert(0, StrCat("The tool ", name, name.empty() ? "" : " ", "returned: "));
  message->role = "user";
  message->name.clear();
  message->tool_call_id.clear();
}

}  // namespace

Status DescribeTools(const Json& tools, bool takes_system, const chat::HoldMemory& hold,
                     std::vector<ChatMessage>* messages) {
  chat::Budget budget(hold);
  std::vector<ChatMessage> described;
  bool results = false;  // the last message has results
  std::map<std::string, std::string> tools_of_calls;
  for (ChatMessage& message : *messages) {
    if (!message.tool_calls.is_null()) {
      const Json calls = std::exchange(message.tool_calls, nullptr);
      PS_ASSIGN_OR_RETURN(const std::string text, TextOfCalls(calls, &budget));
      AddParagraph(text, &message.content);
      for (const Json& call : calls)
        if (call.contains("id")) tools_of_calls[call.at("id")] = call.at("function").at("name");
    }
    const bool result = message.role == "tool";
    if (result) MakeResult(tools_of_calls, &message);
    if (results && message.role == "user") {
      AddParagraph(message.content, &described.back().content);
    } else {
      if (results) AddParagraph(kAnswer, &described.back().content);
      described.push_back(std::move(message));
    }
    results = result;
  }
  if (results) AddParagraph(kAnswer, &described.back().content);
  *messages = std::move(described);
  if (tools.is_null()) return Status();
  PS_ASSIGN_OR_RETURN(const std::string description, Description(tools, &budget));
  AddDescription(description, takes_system, messages);
  return Status();
}

}  // namespace polysketch
