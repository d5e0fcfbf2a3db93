#include "server/chat/tool_form.h"

#include <iterator>

#include "base/check.h"

namespace polysketch {
namespace {

struct Form {
  ToolForm form;
  std::string_view name;
  ToolFraming framing;
};

constexpr Form kForms[] = {
    {ToolForm::kHermes,
     "hermes",
     {.open = "<tool_call>",
      .close = "</tool_call>",
      .one_each = true,
      .separator = "\n",
      .before = "\n",
      .after = "\n"}},
    {ToolForm::kLlama,
     "llama3_json",
     {.separator = "; ", .call = {R"({"name": ")", R"(", "parameters": )", "}"}}},
    {ToolForm::kMistral,
     "mistral",
     {.open = "[TOOL_CALLS]", .separator = ", ", .before = "[", .after = "]"}},
    // A grammar writes all arguments as one dict, which Python accepts too.
    {ToolForm::kPythonic,
     "pythonic",
     {.separator = ", ", .before = "[", .after = "]", .call = {"", "(**", ")"}}},
    {ToolForm::kJson, "json", {.separator = "\n"}},
    {ToolForm::kGranite,
     "granite",
     {.open = "<|tool_call|>", .separator = ", ", .before = "[", .after = "]"}},
};

static_assert(std::size(kForms) == std::size(kToolForms));

const Form& FormOf(ToolForm form) {
  for (const Form& one : kForms) {
    if (one.form == form) return one;
  }
  PS_CHECK(false) << "a form without an entry";
  return kForms[0];
}

}  // namespace

std::string_view ToolFormName(ToolForm form) { return FormOf(form).name; }

std::optional<ToolForm> ToolFormOf(std::string_view name) {
  for (const Form& one : kForms) {
    if (one.name == name) return one.form;
  }
  return std::nullopt;
}

const ToolFraming& FramingOf(ToolForm form) { return FormOf(form).framing; }

std::optional<ToolForm> DetectToolForm(std::string_view chat_template) {
  const auto has = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  // Calls in XML (Qwen3-Coder, GLM, MiniMax), and with the name before the arguments (later
  // Mistral).
  for (const std::string_view other : {"<function=", "<arg_key>", "<invoke name=", "[ARGS]"}) {
    if (has(other)) return std::nullopt;
  }
  if (has("<tool_call>")) return ToolForm::kHermes;
  if (has("[TOOL_CALLS]")) return ToolForm::kMistral;
  if (has("<|tool_call|>")) return ToolForm::kGranite;
  // A template of Llama 4 and of some of Llama 3.2 shows the call [func_name1(params_name1=...)].
  if (has("[func_name1(")) return ToolForm::kPythonic;
  if (has("<|python_tag|>") || (has(R"("parameters": )") && has("<|start_header_id|>")))
    return ToolForm::kLlama;
  if (has(R"({"name":)") && has("arguments")) return ToolForm::kJson;
  return std::nullopt;
}

}  // namespace polysketch
