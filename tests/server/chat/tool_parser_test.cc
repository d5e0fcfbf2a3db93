#include "server/chat/tool_parser.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/bounded_json.h"
#include "gtest/gtest.h"
#include "server/chat/python_call.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using Kind = ToolEvent::Kind;
using nlohmann::json;

ToolParsing Parsing(ToolForm form, int max_calls = kMaxCalls) {
  return {.form = form, .names = {"get_weather", "get_time", "f"}, .max_calls = max_calls};
}

// The events of an output that arrives in pieces, which end at the places `cuts`.
ToolEvents Read(const ToolParsing& parsing, const std::string& text,
                const std::vector<size_t>& cuts = {}) {
  const std::unique_ptr<ToolParser> parser = NewToolParser(parsing);
  ToolEvents events;
  size_t begin = 0;
  for (const size_t end : cuts) {
    parser->Append(std::string_view(text).substr(begin, end - begin), &events);
    begin = end;
  }
  parser->Append(std::string_view(text).substr(begin), &events);
  parser->Finish(&events);
  return events;
}

// "text|name(arguments)|name(arguments)!broken|...", for comparison.
std::string Show(const ToolEvents& events) {
  std::string shown;
  for (const ToolEvent& event : events) {
    if (event.kind == Kind::kText) shown += "'" + event.text + "'";
    if (event.kind == Kind::kCall) shown += event.text + "(";
    if (event.kind == Kind::kArguments) shown += event.text;
    if (event.kind == Kind::kEnd) shown += ")";
    if (event.kind == Kind::kBroken) shown += "!'" + event.text + "'";
  }
  return shown;
}

std::string Read(ToolForm form, const std::string& text, int max_calls = kMaxCalls) {
  return Show(Read(Parsing(form, max_calls), text));
}

constexpr char kParis[] = R"({"city": "Paris"})";

TEST(ToolForm, NamesAndDetection) {
  for (const ToolForm form : kToolForms) EXPECT_EQ(ToolFormOf(ToolFormName(form)), form);
  EXPECT_EQ(ToolFormOf("xml"), std::nullopt);
  EXPECT_EQ(DetectToolForm("{{ '<tool_call>' }}"), ToolForm::kHermes);
  EXPECT_EQ(DetectToolForm("{{ '[TOOL_CALLS] [' }}"), ToolForm::kMistral);
  EXPECT_EQ(DetectToolForm("respond only with <|tool_call|> followed by"), ToolForm::kGranite);
  EXPECT_EQ(DetectToolForm("{{ '<|python_tag|>' }}"), ToolForm::kLlama);
  EXPECT_EQ(DetectToolForm("[func_name1(params_name1=params_value1)]"), ToolForm::kPythonic);
  EXPECT_EQ(DetectToolForm("<tool_call>\n<function="), std::nullopt);
  EXPECT_EQ(DetectToolForm("{{ messages[0].content }}"), std::nullopt);
}

TEST(ToolParser, Hermes) {
  const auto read = [](const std::string& text) { return Read(ToolForm::kHermes, text); };
  EXPECT_EQ(read("Hello <b> <tool_cal"), "'Hello <b> <tool_cal'");
  EXPECT_EQ(read("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
                 "\"Paris\"}}\n</tool_call>"),
            StrCat("get_weather(", kParis, ")"));
  // The white space before and after a call belongs to it.
  EXPECT_EQ(read("Let me see.\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
                 "<tool_call>{\"arguments\": {\"x\": [1, {\"y\": \"}\"}]}, \"name\": "
                 "\"f\"}</tool_call>\n"),
            "'Let me see.'f({})f({\"x\": [1, {\"y\": \"}\"}]})");
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> done"),
            "f({})' done'");
  // Several in one pair of tags, as a list or not; no end.
  EXPECT_EQ(read("<tool_call>[{\"name\": \"f\"}, {\"name\": \"get_time\"}]</tool_call>"),
            "f({})get_time({})");
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\"}{\"name\": \"get_time\"}"), "f({})get_time({})");
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\"}\n</tool_c"), "f({})");
  // Arguments in a string; none.
  EXPECT_EQ(read(R"(<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}</tool_call>)"),
            R"(f({"x": 1}))");
  EXPECT_EQ(read(R"(<tool_call>{"arguments": "{\"x\": 1}", "name": "f"}</tool_call>)"),
            R"(f({"x": 1}))");
  EXPECT_EQ(read(R"(<tool_call>{"name": "f", "arguments": null}</tool_call>)"), "f({})");
  EXPECT_EQ(read(R"(<tool_call>{"id": 5, "type": "function", "name": "f"}</tool_call>)"), "f({})");
}

TEST(ToolParser, WhatIsNoCallIsText) {
  // A history with these arguments would be refused.
  for (const std::string value : {"1e400", "-1e999", R"("\ud800")", R"({"b": ["\udc00x"]})"}) {
    const std::string call = R"({"name": "f", "arguments": {"a": )" + value + "}}";
    EXPECT_EQ(Read(ToolForm::kHermes, "<tool_call>" + call + "</tool_call>"),
              "f({\"a\": " + value + "}!'<tool_call>" + call + "''</tool_call>'");
    EXPECT_EQ(Read(ToolForm::kHermes, "<tool_call>" + call),
              "f({\"a\": " + value + "}!'<tool_call>" + call + "'");
  }
  EXPECT_EQ(Read(ToolForm::kPythonic, "[f(a=1e400)]"), "'[f(a=1e400)]'");
  for (const std::string text :
       {"<tool_call>", "<tool_call>\n", "<tool_call>x</tool_call>", "<tool_call>{}</tool_call>",
        "<tool_call>[]</tool_call>", "<tool_call>[[",
        "<tool_call>{\"name\": \"other\", \"arguments\": {}}", "<tool_call>{\"name\": 5}",
        "<tool_call>{\"city\": \"Paris\"}", "<tool_call>{\"name\": \"f\"",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}",
        "<tool_call>{\"name\": \"f\", \"name\": \"f\"}", " \n ", "<", "<<tool_call", ""}) {
    const ToolEvents events = Read(Parsing(ToolForm::kHermes), text);
    EXPECT_EQ(Show(events), text.empty() ? "" : "'" + text + "'");
  }
  // Arguments that were passed on before they broke.
  EXPECT_EQ(Read(ToolForm::kHermes, R"(<tool_call>{"name": "f", "arguments": {"x": 1,}} y)"),
            R"(f({"x": 1,!'<tool_call>{"name": "f", "arguments": {"x": 1,''}} y')");
  EXPECT_EQ(Read(ToolForm::kHermes, R"(<tool_call>{"name": "f", "arguments": {"x)"),
            R"(f({"x!'<tool_call>{"name": "f", "arguments": {"x')");
  // Another call follows.
  EXPECT_EQ(Read(ToolForm::kHermes, "<tool_call>{x<tool_call>{\"name\": \"f\"}</tool_call>"),
            "'<tool_call>{x'f({})");
}

TEST(ToolParser, FormsThatBeginTheOutput) {
  EXPECT_EQ(
      Read(ToolForm::kLlama,
           R"( {"name": "f", "parameters": {"x": 1}}; {"name": "get_time", "parameters": {}})"),
      R"(f({"x": 1})get_time({}))");
  EXPECT_EQ(Read(ToolForm::kLlama, R"({"type": "function", "name": "f", "parameters": {}} so)"),
            "f({})' so'");
  EXPECT_EQ(Read(ToolForm::kLlama, R"(It is {"name": "f"})"), R"('It is {"name": "f"}')");
  EXPECT_EQ(Read(ToolForm::kJson, R"({"answer": 5, "name": "f"})"),
            R"('{"answer": 5, "name": "f"}')");
  EXPECT_EQ(Read(ToolForm::kJson, "{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"f\"}"),
            "f({})f({})");
  EXPECT_EQ(Read(ToolForm::kJson, R"([{"name": "f"}, {"name": "f"}])"), "f({})f({})");
  EXPECT_EQ(Read(ToolForm::kMistral,
                 R"(Hm. [TOOL_CALLS] [{"name": "f", "arguments": {"x": "]"}}, {"name": "f"}])"),
            R"('Hm.'f({"x": "]"})f({}))");
  EXPECT_EQ(Read(ToolForm::kGranite, R"(So. <|tool_call|>[{"name": "f", "arguments": {"x": 1}}])"),
            R"('So.'f({"x": 1}))");
  EXPECT_EQ(Read(ToolForm::kMistral, R"([{"name": "f"}])"), R"('[{"name": "f"}]')");
  // The end of an array belongs to its calls, whatever follows.
  EXPECT_EQ(Read(ToolForm::kJson, R"([{"name": "f"}] so)"), "f({})' so'");
  EXPECT_EQ(Read(ToolForm::kJson, "[{\"name\": \"f\"} ]\n"), "f({})");
  EXPECT_EQ(Read(ToolForm::kMistral, R"([TOOL_CALLS][{"name": "f"}] so)"), "f({})' so'");
  EXPECT_EQ(
      Read(ToolForm::kMistral, R"([TOOL_CALLS][{"name": "f"}] [TOOL_CALLS][{"name": "get_time"}])"),
      "f({})get_time({})");
  EXPECT_EQ(Read(ToolForm::kHermes, R"(<tool_call>[{"name": "f"}] so)"), "f({})' so'");
  ToolParsing unmarked = Parsing(ToolForm::kMistral);
  unmarked.unmarked = true;
  EXPECT_EQ(Show(Read(unmarked, R"([{"name": "f"}])")), "f({})");
  unmarked = Parsing(ToolForm::kHermes);
  unmarked.unmarked = true;
  EXPECT_EQ(Show(Read(unmarked, "\n{\"name\": \"f\"}\n{\"name\": \"f\"}\n")), "f({})f({})");
}

TEST(ToolParser, Pythonic) {
  const auto read = [](const std::string& text) { return Read(ToolForm::kPythonic, text); };
  EXPECT_EQ(read(R"([get_weather(city="Paris"), f()])"), StrCat("get_weather(", kParis, ")f({})"));
  EXPECT_EQ(read(R"([f(**{"x": [true, None]})])"), R"(f({"x": [true, null]}))");
  EXPECT_EQ(read("[f(x=')]')]"), R"(f({"x": ")]"}))");
  for (const std::string text :
       {"[1] is a note", "[]", "[f", "[f(", "[f(x)]", "[f(x=1 y=2)]", "[other()]", "f()",
        "[f(x=g())]", "[,f()]", "[f(x={1, 2})]", "[f(x=''')]')]"})
    EXPECT_EQ(read(text), "'" + text + "'");
  EXPECT_EQ(read("[f() f()]"), "f({})' f()]'");
  EXPECT_EQ(read("[f()] and"), "f({})' and'");
  EXPECT_EQ(read("[f()]] and"), "f({})'] and'");
  EXPECT_EQ(read("[f()] \n"), "f({})");
  EXPECT_EQ(read("[f(x={1: 0x10, True: 1_000})]"), R"(f({"x": {"1": 16, "true": 1000}}))");
  // Strings of three quotes, and empty ones.
  EXPECT_EQ(read(R"([f(x='''it's ")]''', y=""), f(x='')])"),
            R"(f({"x": "it's \")]", "y": ""})f({"x": ""}))");
}

TEST(ToolParser, PythonCallsAreThoseOfAst) {
  std::ifstream file(testing::SourceDir() / "tests/server/chat/recorded_python_calls.json");
  const json cases = json::parse(file);
  EXPECT_GE(cases.size(), 600u);
  for (const json& one : cases) {
    const std::string text = one.at(0);
    const std::optional<PythonCall> call = ParsePythonCall(text);
    ASSERT_EQ(call.has_value(), !one.at(1).is_null()) << text;
    if (!call) continue;
    EXPECT_EQ(call->name, one.at(1).at(0)) << text;
    const auto arguments = ParseJson(call->arguments);
    ASSERT_TRUE(arguments.ok()) << text << " gives " << call->arguments;
    EXPECT_EQ(*arguments, one.at(1).at(1)) << text;
  }
}

TEST(ToolParser, CallsAreBounded) {
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  EXPECT_EQ(Read(ToolForm::kHermes, call + call, 1), "f({})'" + call + "'");
  EXPECT_EQ(Read(ToolForm::kPythonic, "[f(), f()]", 1), "f({})', f()]'");
  const std::string begin = R"(<tool_call>{"name": "f", "arguments": {"x": ")";
  const std::string text = begin + std::string(2 * kMaxCallBytes, 'x');
  const std::unique_ptr<ToolParser> parser = NewToolParser(Parsing(ToolForm::kHermes));
  ToolEvents events;
  for (size_t at = 0; at < text.size(); at += 4096) {
    parser->Append(std::string_view(text).substr(at, 4096), &events);
    EXPECT_LE(parser->held_bytes(), kMaxCallBytes + 4096);
  }
  parser->Finish(&events);
  ASSERT_EQ(events.size(), 4u);  // the call, its arguments, that it is none, and the rest
  EXPECT_EQ(events[2].kind, Kind::kBroken);
  EXPECT_EQ(events[2].text + events[3].text, text);
  // Depth too.
  std::string deep = R"(<tool_call>{"name": "f", "arguments": {"x": )" + std::string(1000, '[');
  EXPECT_EQ(Read(Parsing(ToolForm::kHermes), deep)[2].kind, Kind::kBroken);
  deep = "[f(x=" + std::string(100'000, '[') + std::string(100'000, ']') + ")]";
  EXPECT_EQ(Read(ToolForm::kPythonic, deep), "'" + deep + "'");
}

// What holds of any output: the events of a call are in order, arguments of a complete one are a
// JSON object, and nothing is lost where there is no call.
void CheckEvents(const ToolParsing& parsing, const std::string& text, const ToolEvents& events) {
  bool open = false, any = false;
  std::string arguments, shown;
  for (const ToolEvent& event : events) {
    switch (event.kind) {
      case Kind::kText:
        ASSERT_FALSE(open) << text;
        shown += event.text;
        break;
      case Kind::kCall:
        ASSERT_FALSE(open) << text;
        ASSERT_TRUE(parsing.names.contains(event.text)) << text;
        open = any = true;
        arguments.clear();
        break;
      case Kind::kArguments:
        ASSERT_TRUE(open) << text;
        arguments += event.text;
        break;
      case Kind::kEnd: {
        ASSERT_TRUE(open) << text;
        open = false;
        const auto object = ParseJson(arguments);
        ASSERT_TRUE(object.ok() && object->is_object()) << text << " has " << arguments;
        break;
      }
      case Kind::kBroken:
        ASSERT_TRUE(open) << text;
        ASSERT_NE(event.text.find(arguments), std::string::npos) << text;
        open = false;
        shown += event.text;
    }
  }
  ASSERT_FALSE(open) << text;
  if (!any) {
    ASSERT_EQ(shown, text);
  }
}

TEST(ToolParser, SplitsChangeNothing) {
  const std::string parts[] = {"<tool_call>",
                               "</tool_call>",
                               "[TOOL_CALLS]",
                               "{\"name\": \"f\"",
                               ", \"arguments\": {",
                               ", \"parameters\": {}",
                               "\"x\": \"\\\"é\"",
                               "}",
                               "}",
                               "[",
                               "]",
                               ", ",
                               "; ",
                               " ",
                               "\n",
                               "text",
                               "<",
                               "{",
                               "\"",
                               "\\",
                               "f(",
                               "x=1",
                               "get_time(city='a')",
                               ")",
                               "é",
                               "null",
                               "-1.5",
                               "\"name\": \"get_time\""};
  std::mt19937 random(1);
  int calls = 0;
  for (int i = 0; i < 60'000; ++i) {
    const ToolForm form = kToolForms[random() % std::size(kToolForms)];
    ToolParsing parsing = Parsing(form, random() % 4 == 0 ? 1 : kMaxCalls);
    parsing.unmarked = random() % 4 == 0;
    std::string text;
    // Half of them begin as a call does.
    if (random() % 2 == 0)
      text = form == ToolForm::kHermes     ? "<tool_call>{\"name\": \"f\""
             : form == ToolForm::kMistral  ? "[TOOL_CALLS][{\"name\": \"f\""
             : form == ToolForm::kGranite  ? "<|tool_call|>[{\"name\": \"f\""
             : form == ToolForm::kPythonic ? "[f("
                                           : "{\"name\": \"f\"";
    for (size_t count = random() % 10; count > 0; --count)
      text += parts[random() % std::size(parts)];
    const ToolEvents whole = Read(parsing, text);
    CheckEvents(parsing, text, whole);
    if (HasFatalFailure()) return;
    for (const ToolEvent& event : whole) calls += event.kind == Kind::kEnd ? 1 : 0;
    std::vector<size_t> every;
    for (size_t at = 1; at < text.size(); ++at) every.push_back(at);
    ASSERT_EQ(Read(parsing, text, every), whole) << text;
    const size_t one = text.empty() ? 0 : random() % text.size();
    ASSERT_EQ(Read(parsing, text, {one}), whole) << text << " at " << one;
  }
  EXPECT_GT(calls, 1000);
}

}  // namespace
}  // namespace polysketch
