// The forms in which models write calls of tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

enum class ToolForm {
  kHermes,    // <tool_call>{"name": NAME, "arguments": {...}}</tool_call>: Hermes, Qwen
  kLlama,     // {"name": NAME, "parameters": {...}}, several with ; between: Llama 3
  kMistral,   // [TOOL_CALLS][{"name": NAME, "arguments": {...}}]
  kPythonic,  // [NAME(x=1, y="a")]
  kJson,      // {"name": NAME, "arguments": {...}}, one after the other
  kGranite,   // <|tool_call|>[{"name": NAME, "arguments": {...}}]: Granite 3
};
inline constexpr ToolForm kToolForms[] = {ToolForm::kHermes,  ToolForm::kLlama,
                                          ToolForm::kMistral, ToolForm::kPythonic,
                                          ToolForm::kJson,    ToolForm::kGranite};

// The name of a form, as --tool-format has it: "hermes", "llama3_json", "mistral", "pythonic",
// "json", "granite".
std::string_view ToolFormName(ToolForm form);
std::optional<ToolForm> ToolFormOf(std::string_view name);

// The form that the text of a chat template declares; nullopt if it has the marks of none, or those
// of a form that the server does not read.
std::optional<ToolForm> DetectToolForm(std::string_view chat_template);

// Whether a tool's name may have the character.
inline bool IsInToolName(char c) {
  return c == '_' || c == '-' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

// What surrounds the calls of a form.
struct ToolFraming {
  std::string_view open = {};   // before calls, in any place of the output; empty: they begin it
  std::string_view close = {};  // after them; may be empty
  bool one_each = false;        // open and close surround each call, not all of them
  std::string_view separator = {};           // between calls, as a grammar writes it
  std::string_view before = {}, after = {};  // around all calls, within open and close
  // A call: call[0] NAME call[1] ARGUMENTS call[2].
  std::string_view call[3] = {R"({"name": ")", R"(", "arguments": )", "}"};
};
const ToolFraming& FramingOf(ToolForm form);

}  // namespace polysketch
