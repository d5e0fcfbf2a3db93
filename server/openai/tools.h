// The tools of a chat: what a request says of them, and what the template, the grammar and the
// reader of the output get of it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/chat/tool_parser.h"
#include "server/openai/completion_request.h"
#include "server/openai/json_fields.h"
#include "server/rpc/served_model.h"

namespace polysketch {

inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxToolName = 64;

struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // the JSON Schema of its arguments
  std::string schema_field;           // of the request: "tools[0].function.parameters"
  bool strict = false;
};

struct ToolUse {
  // kAuto: the model may call. kRequired: it must, one of `callable`.
  enum class Choice { kNone, kAuto, kRequired };
  Choice choice = Choice::kNone;
  bool parallel = true;                   // the model may call more than one
  nlohmann::ordered_json list = nullptr;  // of the request, for the template; null: none
  std::vector<Tool> callable;
};

// Reads tools, tool_choice and parallel_tool_calls of a body of ParseCompletionBody. With the
// choice none the template gets the tools all the same, so that the prompts of a conversation begin
// alike. `flat`: the members of a function are those of its tool and of its choice, as the
// Responses API has them.
ToolUse ReadTools(JsonFields* fields, bool flat = false);

// --- the parts of ReadTools, for APIs that write tools in another way ---
// Where a tool's function and its JSON Schema are, in errors: "tools[0].function.parameters".
struct ToolNames {
  std::string_view function, parameters;
};
// Makes a tool in the form of chat completions.
using ToolConverter = std::function<Result<nlohmann::ordered_json>(
    const nlohmann::ordered_json& tool, const std::string& field)>;
// Adds the tools of an array.
Status ReadToolList(const nlohmann::ordered_json& tools, const ToolNames& names,
                    const ToolConverter& convert, ToolUse* use);
// Chooses the tool `name`, which `field` of the request names.
Status ChooseTool(const nlohmann::ordered_json& name, const std::string& field, ToolUse* use);
// Ends the reading of the tools and of their choice.
Status CheckChoice(ToolUse* use);

// Binds the output of a job, which has its prompt, to calls in the form of the model: from the
// first token for kRequired; for kAuto from the mark of the form on where it has one that is text.
// A response format beside kAuto holds for an answer that is no call. Sets
// CompletionOptions::tools. INVALID_ARGUMENT or FAILED_PRECONDITION: the model cannot call tools
// so. Does nothing for kNone.
Status BindTools(const ToolUse& use, const ServedModel& model, CompletionJob* job);

// The calls of an assistant's message as templates take them: arguments that are objects, in the
// order of their members. `field`: for errors.
Result<nlohmann::ordered_json> ToToolCalls(const nlohmann::ordered_json& calls,
                                           const std::string& field);

// The arguments of a call: a JSON object, or one in a string; none without the field.
nlohmann::ordered_json ReadArguments(JsonFields* fields, const char* name);
// A call of an assistant's message as templates take it. An empty id is left out.
nlohmann::ordered_json ToolCall(const std::string& id, const std::string& name,
                                nlohmann::ordered_json arguments);

// A new id of a call: `prefix` and 24 characters, or what the templates of the form demand.
std::string NewCallId(ToolForm form, std::string_view prefix = "call_");

}  // namespace polysketch
