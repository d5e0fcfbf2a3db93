#include "server/chat/tool_parser.h"

namespace polysketch {

std::unique_ptr<ToolParser> NewToolParser(const ToolParsing& parsing) {
  return parsing.form == ToolForm::kPythonic ? NewPythonicToolParser(parsing)
                                             : NewJsonToolParser(parsing);
}

void AddToolEvent(ToolEvent::Kind kind, std::string_view text, ToolEvents* events) {
  using Kind = ToolEvent::Kind;
  const bool continues = kind == Kind::kText || kind == Kind::kArguments;
  if (continues && text.empty()) return;
  if (continues && !events->empty() && events->back().kind == kind) {
    events->back().text += text;
  } else {
    events->push_back({kind, std::string(text)});
  }
}

}  // namespace polysketch
