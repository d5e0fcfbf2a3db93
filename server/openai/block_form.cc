#include "server/openai/block_form.h"

#include <utility>

#include "server/openai/tools.h"

namespace polysketch {

BlockForm::BlockForm(const CompletionOptions& options, AnswerHeader header,
                     std::string_view call_prefix, bool repeats)
    : tools_(options.tools),
      header_(std::move(header)),
      call_prefix_(call_prefix),
      repeats_(repeats),
      parser_(tools_ ? NewToolParser(*tools_) : nullptr) {}

std::string BlockForm::Take(AnswerChoice* choice) {
  std::string events = AddText(Kind::kReasoning, std::exchange(choice->reasoning, ""));
  const std::string text = std::exchange(choice->text, "");
  if (parser_ == nullptr) return events += AddText(Kind::kText, text);
  const bool last = !choice->finish_reason.empty();
  const ToolEvents parts = parser_->Read(text, last);
  for (const ToolEvent& part : parts) {
    switch (part.kind) {
      case ToolEvent::Kind::kText:
        events += AddText(Kind::kText, part.text);
        break;
      case ToolEvent::Kind::kCall:
        call_ = {.kind = Kind::kCall,
                 .call_id = NewCallId(tools_->form, call_prefix_),
                 .name = part.text};
        if (!holds_calls()) events += BeginBlock(std::exchange(call_, {}));
        break;
      case ToolEvent::Kind::kArguments:
        holds_calls() ? call_.text += part.text : events += Add(part.text);
        break;
      case ToolEvent::Kind::kEnd:
        ++calls_;
        if (holds_calls()) events += WholeCall(std::exchange(call_, {}));
        events += EndBlock("completed");
        break;
      case ToolEvent::Kind::kBroken: {
        // The client has the call: one that the end of the output has cut ends there.
        const bool cut = last && choice->finish_reason != "stop" && &part == &parts.back();
        if (!holds_calls()) events += EndBlock("incomplete");
        if (holds_calls() || !cut) events += AddText(Kind::kText, part.text);
        call_ = {};
        break;
      }
    }
  }
  return events;
}

std::string BlockForm::WholeCall(AnswerBlock call) {
  const std::string arguments = std::exchange(call.text, "");
  std::string events = BeginBlock(std::move(call));
  return events += Add(arguments);
}

std::string BlockForm::AddText(Kind kind, const std::string& text) {
  if (text.empty()) return "";
  std::string events;
  if (!open() || blocks_.back().kind != kind) events = BeginBlock({.kind = kind});
  return events += Add(text);
}

std::string BlockForm::BeginBlock(AnswerBlock block) {
  std::string events = EndBlock("completed");
  if (streams_ && !repeats_) blocks_.clear();
  blocks_.push_back(std::move(block));
  ++begun_;
  return streams_ ? events += Began() : "";
}

std::string BlockForm::Add(const std::string& text) {
  if (!streams_ || repeats_) blocks_.back().text += text;
  return streams_ ? Grew(text) : "";
}

std::string BlockForm::EndBlock(std::string_view status) {
  if (!open()) return "";
  blocks_.back().status = status;
  return streams_ ? Ended() : "";
}

}  // namespace polysketch
