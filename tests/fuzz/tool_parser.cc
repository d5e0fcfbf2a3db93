// Outputs with calls of tools: in every form the events are in order, a complete call has a JSON
// object, nothing is lost where there is no call, and the events do not depend on how the output
// arrives. The first byte selects the form, the second the cut.
#include "server/chat/tool_parser.h"

#include <iterator>
#include <string>

#include "base/bounded_json.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

ToolEvents Read(const ToolParsing& parsing, std::string_view text, size_t piece) {
  const std::unique_ptr<ToolParser> parser = NewToolParser(parsing);
  ToolEvents events;
  for (size_t at = 0; at < text.size(); at += piece)
    parser->Append(text.substr(at, piece), &events);
  parser->Finish(&events);
  PS_CHECK(parser->held_bytes() == 0);
  return events;
}

void CheckEvents(const ToolParsing& parsing, std::string_view text, const ToolEvents& events) {
  using Kind = ToolEvent::Kind;
  bool open = false;
  int calls = 0, announced = 0;
  std::string arguments, shown;
  for (const ToolEvent& event : events) {
    const bool inside = event.kind != Kind::kText && event.kind != Kind::kCall;
    PS_CHECK(open == inside);
    if (event.kind == Kind::kText || event.kind == Kind::kBroken) shown += event.text;
    if (event.kind == Kind::kArguments) arguments += event.text;
    if (event.kind == Kind::kCall) {
      PS_CHECK(parsing.names.contains(event.text));
      arguments.clear();
      ++announced;
      open = true;
    } else if (event.kind == Kind::kEnd || event.kind == Kind::kBroken) {
      open = false;
    }
    if (event.kind == Kind::kEnd) {
      ++calls;
      // Bytes that are not UTF-8, half pairs of surrogates and numbers out of range pass.
      const auto object = ParseJson(arguments);
      if (object.ok()) PS_CHECK(object->is_object());
    }
  }
  PS_CHECK(!open && calls <= parsing.max_calls);
  if (announced == 0) PS_CHECK(shown == text);
}

void Run(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const auto first = static_cast<unsigned char>(bytes[0]);
  const auto piece = static_cast<unsigned char>(bytes[1]);
  const ToolParsing parsing{.form = kToolForms[first % std::size(kToolForms)],
                            .names = {"f", "get_weather"},
                            .max_calls = (first & 64) != 0 ? 1 : kMaxCalls,
                            .unmarked = (first & 128) != 0};
  const std::string_view text = bytes.substr(2);
  const ToolEvents events = Read(parsing, text, std::max<size_t>(text.size(), 1));
  CheckEvents(parsing, text, events);
  PS_CHECK(Read(parsing, text, 1 + piece % 16) == events);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  polysketch::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
