#include "server/openai/reasoning.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTailTokens = 32;  // of a prompt, which have its last mark

// The end of the text of the prompt, with its control pieces.
std::string TailOf(const v1::CompleteRequest& request, const Tokenizer& tokenizer) {
  const auto& ids = request.prompt().tokens().ids();
  std::string tail;
  for (int i = std::max(0, ids.size() - kTailTokens); i < ids.size(); ++i)
    tail += tokenizer.IsControl(ids[i]) ? tokenizer.Piece(ids[i]) : tokenizer.PieceBytes(ids[i]);
  return tail;
}

// Lets reasoning precede what `request` asks of the output, by its `field`.
Status FreeReasoning(const ReasoningMarks& marks, ReasoningStart start, const std::string& field,
                     v1::CompleteRequest* request) {
  PS_ASSIGN_OR_RETURN(Json format, FormatOf(request->structured_output()));
  if (format.is_null())
    return FailedPrecondition(
        field,
        ": expected a prompt without reasoning, which an EBNF grammar cannot follow "
        "(chat_template_kwargs, reasoning_format)");
  const bool begun = start == ReasoningStart::kBegun;
  const Json reasoning = {{"type", "tag"},
                          {"begin", begun ? "" : std::string(marks.open)},
                          {"content", {{"type", "any_text"}}},
                          {"end", std::string(marks.close)}};
  Json before = {{"type", "sequence"},
                 {"elements", {reasoning, {{"type", "regex"}, {"pattern", "[ \\n]{0,4}"}}}}};
  if (!begun)
    before = {{"type", "or"},
              {"elements", {{{"type", "const_string"}, {"value", ""}}, std::move(before)}}};
  format = {{"type", "sequence"}, {"elements", {std::move(before), std::move(format)}}};
  SetFormat(std::move(format), request->structured_output().compact_json(), request);
  return Status();
}

}  // namespace

ReasoningUse ReadReasoning(JsonFields* fields, bool nested, ChatOptions* options) {
  ReasoningUse use;
  use.apart = fields->OneOf("reasoning_format", {"none", "auto", "deepseek"}, "auto") != "none";
  use.include = fields->Bool("include_reasoning").value_or(true);
  std::optional<std::string> effort;
  if (nested) {
    if (const Json* const object = fields->Object("reasoning")) {
      JsonFields inner(*object, "reasoning.");
      effort = inner.String("effort");
      inner.Ignore({"summary", "generate_summary"});
      fields->Merge(inner.Finish());
    }
  } else {
    effort = fields->String("reasoning_effort");
  }
  if (!effort.has_value()) return use;
  Json& variables = options->variables;
  if (variables.is_null()) variables = Json::object();
  const auto set = [&](const char* name, const Json& value) {
    if (!variables.contains(name)) variables[name] = value;
  };
  set("reasoning_effort", *effort);
  if (*effort == "none") set("enable_thinking", false);
  return use;
}

Status BindReasoning(const ReasoningUse& use, const ServedModel& model, CompletionJob* job) {
  CompletionOptions* const options = &job->options;
  v1::CompleteRequest* const request = &job->common;
  // Calls that must follow a control piece follow no reasoning.
  const bool calls = options->tools.has_value() && options->tools->unmarked;
  if (!use.apart || !model.reasoning || calls) return Status();
  const Tokenizer& tokenizer = *model.rules.tokenizer;
  const ReasoningMarks& marks = *model.reasoning;
  const ReasoningStart start = ReasoningStartAfter(TailOf(*request, tokenizer), marks);
  if (start == ReasoningStart::kOver) return Status();
  options->reasoning.emplace(marks, start == ReasoningStart::kBegun);
  options->include_reasoning = use.include;
  const ControlPiece* const piece = tokenizer.ControlPieceAt(marks.close);
  const bool control = piece != nullptr && piece->text == marks.close;
  // No grammar writes a control piece.
  if (control && !request->has_structured_output()) ShowMarks({marks.open, marks.close}, job);
  if (!request->has_structured_output()) return Status();
  const std::string& field = options->grammar.output;
  if (!control) return FreeReasoning(marks, start, field, request);
  if (start == ReasoningStart::kMayBegin) return Status();
  return FailedPrecondition(field,
                            ": expected no constraint of the output after a prompt that begins "
                            "reasoning, whose mark is a "
                            "control piece (chat_template_kwargs)");
}

}  // namespace polysketch
