#include "server/openai/tools.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "engine/grammar_source/schema_grammar.h"
#include "engine/grammar_source/structural_tag.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/openai/answer_form.h"
#include "server/openai/responses_request.h"
#include "tests/server/openai/chat_fixture.h"
#include "tests/server/rpc/fake_tokenizer.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kToolTemplate[] =
    "{%- if tools %}{{ bos_token }}system: {{ tools | tojson }}{{ eos_token }}{% endif %}"
    "{%- for message in messages %}{{ bos_token + message.role + ': ' }}"
    "{%- if message.content is not none %}{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls %}<tool_call>{{ call.function.arguments | tojson }} {{ "
    "call.id }}"
    "</tool_call>{% endfor %}"
    "{%- if message.tool_call_id %} of {{ message.tool_call_id }}{% endif %}{{ eos_token }}{% "
    "endfor %}"
    "{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}";

// Two tools, whose members are in no order of the alphabet.
constexpr char kTools[] = R"([
  {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 6}, "at": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["city", "at"], "additionalProperties": false}}},
  {"type": "function", "function": {"name": "get_time"}}])";

std::string WithTools(const std::string& more = "") {
  return StrCat("\"tools\": ", kTools, more.empty() ? "" : ", ", more);
}

class Tools : public testing::ChatModel {
 protected:
  void SetUp() override {
    ChatModel::SetUp();
    UseTemplate(kToolTemplate);
  }
};

TEST_F(Tools, ErrorsNameTheField) {
  EXPECT_THAT(ErrorOf(R"("tools": {"a": 1})"), StartsWith("tools: expected an array"));
  EXPECT_THAT(ErrorOf(R"("tools": [5])"), StartsWith("tools[0]: expected an object"));
  EXPECT_THAT(ErrorOf(R"("tools": [{"type": "retrieval"}])"), StartsWith("tools[0].type: "));
  EXPECT_THAT(ErrorOf(R"("tools": [{"type": "function"}])"), StartsWith("tools[0].function: "));
  const auto function = [](const std::string& members) {
    return R"("tools": [{"type": "function", "function": {)" + members + "}}]";
  };
  EXPECT_THAT(ErrorOf(function("")), StartsWith("tools[0].function.name: expected 1 to 64"));
  EXPECT_THAT(ErrorOf(function(R"("name": "a b")")), HasSubstr("found \"a b\""));
  EXPECT_THAT(ErrorOf(function(R"("name": "f", "parameters": [])")),
              StartsWith("tools[0].function.parameters: "));
  EXPECT_THAT(
      ErrorOf(function(R"("name": "f", "parameters": {"type": "string"})")),
      StartsWith("tools[0].function.parameters.type: expected \"object\", found \"string\""));
  EXPECT_THAT(ErrorOf(function(R"("name": "f", "strict": 1)")),
              StartsWith("tools[0].function.strict: "));
  EXPECT_THAT(
      ErrorOf(
          R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}])"),
      HasSubstr("tools[1].function.name: expected each name once"));
  EXPECT_THAT(ErrorOf(WithTools(R"("tool_choice": "any")")),
              StartsWith("tool_choice: expected none"));
  EXPECT_THAT(
      ErrorOf(WithTools(R"("tool_choice": {"type": "function", "function": {"name": "g"}})")),
      StartsWith("tool_choice.function.name: "));
  EXPECT_THAT(ErrorOf(R"("tool_choice": "required")"), StartsWith("tool_choice: expected tools"));
  EXPECT_THAT(ErrorOf(WithTools(R"("tool_choice": "required", "guided_regex": "a")")),
              HasSubstr("constraint of the output"));
  EXPECT_THAT(ErrorOf(WithTools(R"("guided_regex": "a")")), HasSubstr("response_format"));
  // What the template could not hold.
  EXPECT_THAT(ErrorOf(function(R"("name": "f", "parameters": {"x": )" + std::string(70, '[') +
                               std::string(70, ']') + "}")),
              StartsWith("tools: expected values that nest 64 deep"));
  std::string many;
  for (size_t i = 0; i <= kMaxTools; ++i)
    many += StrCat(i > 0 ? "," : "", R"({"type": "function", "function": {"name": "f)", i, "\"}}");
  EXPECT_THAT(ErrorOf("\"tools\": [" + many + "]"), HasSubstr("at most 128 tools, found 129"));
}

TEST_F(Tools, PartsOfResponsesHaveTheTypeOfTheirRole) {
  const auto error = [this](const std::string& item) {
    const auto body = ParseCompletionBody(StrCat(R"({"input": [)", item, "]}"));
    return ToResponseJob(*body, model_).status().message();
  };
  EXPECT_EQ(
      error(R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})"),
      "input[0].content[0].type: expected output_text, found \"refusal\": the model reads text "
      "only");
  EXPECT_EQ(error(R"({"role": "user", "content": [{"type": "input_image"}]})"),
            "input[0].content[0].type: expected input_text, found \"input_image\": the model reads "
            "text only");
  EXPECT_EQ(error(R"({"type": "reasoning", "content": [{"type": "reasoning_text"}]})"),
            "input[0].content[0].text: expected a string, found none");
  EXPECT_EQ(error(R"({"type": "reasoning", "content": [5]})"),
            "input[0].content[0]: expected an object, found an integer");
  EXPECT_THAT(error(R"({"type": 5})"), ::testing::EndsWith("found an integer"));
}

TEST_F(Tools, CallsOfAMessageAreFunctions) {
  EXPECT_EQ(ErrorOf(R"("messages": [{"role": "assistant", "tool_calls": [
                {"type": "custom", "function": {"name": "f"}}]}])"),
            "messages[0].tool_calls[0].type: expected function, found \"custom\"");
}

TEST_F(Tools, ChoicesWithoutTools) {
  for (const std::string more :
       {"", "\"tools\": []", "\"tools\": null", "\"tool_choice\": \"none\"",
        "\"tool_choice\": \"auto\"", "\"parallel_tool_calls\": false"}) {
    const auto job = Job(more);
    ASSERT_TRUE(job.ok()) << job.status().ToString() << more;
    EXPECT_FALSE(job->options.tools.has_value()) << more;
    EXPECT_FALSE(job->common.has_structured_output());
  }
  // With the choice none the prompt is that of auto, and all output is text.
  const auto none = Job(WithTools("\"tool_choice\": \"none\""));
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_FALSE(none->options.tools.has_value());
  EXPECT_FALSE(none->common.has_structured_output());
  EXPECT_EQ(none->common.prompt().SerializeAsString(),
            Job(WithTools())->common.prompt().SerializeAsString());
}

// A template that ignores tools gets them, calls and their results as text, and calls have the form
// json.
class DescribedTools : public Tools {
 protected:
  static constexpr char kTurns[] =
      "{% for m in messages %}{{ m.role + ': ' + m.content + '|' }}{% endfor %}";
  static constexpr char kHistory[] = R"(
      {"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Rome\",\"at\":3}"}},
        {"id": "2", "type": "function", "function": {"name": "get_time", "arguments": ""}}]},
      {"role": "tool", "tool_call_id": "1", "content": "sunny"}, {"role": "tool", "content": "3"},
      {"role": "user", "content": "So?"}, {"role": "assistant", "content": "y"})";

  void SetUp() override {
    ChatModel::SetUp();
    UseTemplate(kTurns);
    ASSERT_FALSE(template_->takes_tools());
  }
  std::string TextOf(const Result<CompletionJob>& job) {
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    if (!job.ok()) return "";
    IncrementalDecoder decoder(tokenizer_.get(), /*continued=*/false);
    std::string text;
    for (const int32_t id : job->common.prompt().tokens().ids()) text += decoder.Append(id);
    return text + decoder.Finish();
  }
  Result<CompletionJob> JobOf(const std::string& messages, const std::string& more) {
    const auto body = ParseCompletionBody(StrCat("{\"messages\": [", messages, "], ", more, "}"));
    EXPECT_TRUE(body.ok()) << body.status().ToString();
    return ToChatJob(*body, model_);
  }
};

TEST_F(DescribedTools, AreInTheSystemMessage) {
  const auto job = Job(WithTools());
  const std::string text = TextOf(job);
  EXPECT_THAT(text, StartsWith("system: You can call the following tools."));
  EXPECT_THAT(text,
              HasSubstr(R"({"name": "get_weather", "description": "d", "parameters": {"type":)"));
  EXPECT_THAT(text, HasSubstr("\n{\"name\": \"get_time\"}\n"));
  EXPECT_TRUE(text.ends_with("answer as usual.|user: x|"));
  EXPECT_EQ(job->options.tools->form, ToolForm::kJson);
  EXPECT_FALSE(job->common.has_structured_output());
  const auto required = Job(WithTools("\"tool_choice\": \"required\""));
  EXPECT_EQ(TextOf(required), text);
  EXPECT_TRUE(required->common.has_structured_output());
  EXPECT_EQ(TextOf(Job(WithTools("\"tool_choice\": \"none\""))), text);
  EXPECT_THAT(
      TextOf(JobOf(R"({"role": "system", "content": "Be kind."}, {"role": "user", "content": "x"})",
                   WithTools())),
      StartsWith("system: Be kind.\n\nYou can call"));
  EXPECT_EQ(TextOf(Job("")), "user: x|");
}

TEST_F(DescribedTools, CallsAndResultsAreText) {
  const std::string expected =
      "user: x|assistant: {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"at\": "
      "3}}\n"
      "{\"name\": \"get_time\", \"arguments\": {}}|user: The tool get_weather returned: sunny\n\n"
      "The tool returned: 3\n\nSo?|assistant: y|";
  EXPECT_TRUE(TextOf(JobOf(kHistory, WithTools())).ends_with("answer as usual.|" + expected));
  EXPECT_EQ(TextOf(JobOf(kHistory, "\"max_tokens\": 1")), expected);
}

// Where the user says nothing after them, also within a conversation, whose prompts begin alike.
TEST_F(DescribedTools, ResultsAskForAnAnswer) {
  const std::string result = R"({"role": "tool", "name": "f", "content": "3"})";
  const std::string asked =
      "user: The tool f returned: 3\n\nNow answer my question in words, unless you need another "
      "tool.|";
  EXPECT_EQ(TextOf(JobOf(result, "\"max_tokens\": 1")), asked);
  EXPECT_EQ(TextOf(JobOf(result + R"(, {"role": "assistant", "content": "y"})", "\"n\": 1")),
            asked + "assistant: y|");
}

TEST_F(DescribedTools, ATemplateWithoutSystemMessages) {
  UseTemplate(StrCat("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}",
                     kTurns));
  const std::string text = TextOf(Job(WithTools()));
  EXPECT_THAT(text, StartsWith("user: You can call the following tools."));
  EXPECT_TRUE(text.ends_with("answer as usual.\n\nx|"));
}

TEST_F(DescribedTools, NotWhereTheOperatorNamesAForm) {
  model_.tool_form = ToolForm::kHermes;
  model_.tool_form_named = true;
  const auto job = Job(WithTools());
  EXPECT_EQ(TextOf(job), "user: x|");
  EXPECT_EQ(job->options.tools->form, ToolForm::kHermes);
}

TEST_F(Tools, TheTemplateGetsToolsAndCalls) {
  EXPECT_TRUE(template_->takes_tools());
  std::vector<ChatMessage> messages =
      *ToChatMessages(json::parse(R"([{"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
         "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": {\"y\": [], \"b\": 1.50}}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}]}])"),
                      "messages", {"text"}, /*tools=*/true);
  ChatOptions options;
  options.tools =
      nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const auto text = template_->Render(messages, options);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_THAT(text->text(),
              HasSubstr(R"(system: [{"type": "function", "function": {"name": "f"}}])"));
  EXPECT_THAT(
      text->text(),
      HasSubstr(R"(assistant: <tool_call>{"z": 1, "a": {"y": [], "b": 1.5}} c1</tool_call>)"));
  EXPECT_THAT(text->text(), HasSubstr("tool: 5 of c1"));
  const auto error = [](const std::string& message) {
    return ToChatMessages(json::parse("[" + message + "]"), "messages", {"text"}, true)
        .status()
        .message();
  };
  EXPECT_THAT(error(R"({"role": "assistant", "content": null})"),
              StartsWith("messages[0].content: "));
  EXPECT_EQ(error(R"({"role": "assistant", "content": null, "tool_calls": []})"), "");
  EXPECT_EQ(error(R"({"role": "assistant", "content": null, "reasoning_content": "r"})"), "");
  // Reasoning precedes calls too.
  const auto reasoned = ToChatMessages(
      json::parse(
          R"([{"role": "assistant", "reasoning_content": "r", "tool_calls": [{"function": {"name": "f"}}]}])"),
      "messages", {"text"}, true);
  ASSERT_TRUE(reasoned.ok()) << reasoned.status().ToString();
  EXPECT_EQ(reasoned->front().reasoning, "r");
  EXPECT_EQ(reasoned->front().tool_calls.size(), 1u);
  EXPECT_THAT(
      error(
          R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]})"),
      StartsWith("messages[0].tool_calls[0].function.arguments: expected JSON"));
  EXPECT_THAT(error(R"({"role": "user", "content": "x", "tool_calls": [{"id": "c"}]})"),
              StartsWith("messages[0].tool_calls: "));
  EXPECT_THAT(error(R"({"role": "king", "content": "x"})"), HasSubstr("assistant or tool"));
  EXPECT_FALSE(
      ToChatMessages(json::parse(R"([{"role": "tool", "content": "x"}])"), "input", {"text"}).ok());
}

// The texts of templates that take tools are those of Jinja for what transformers gives them.
TEST_F(Tools, TextsAreThoseOfJinja) {
  std::ifstream file(testing::SourceDir() / "tests/server/chat/recorded_tools.json");
  const auto recorded = nlohmann::ordered_json::parse(file);
  EXPECT_EQ(recorded.at("templates").size(), 3u);
  for (const auto& [name, cases] : recorded.at("templates").items()) {
    std::ifstream source(testing::SourceDir() / "tests/server/chat/templates" / (name + ".jinja"));
    UseTemplate({std::istreambuf_iterator<char>(source), std::istreambuf_iterator<char>()});
    EXPECT_TRUE(template_->takes_tools()) << name;
    EXPECT_GE(cases.size(), 10u);
    for (const auto& one : cases) {
      const auto messages =
          ToChatMessages(json(one.at("messages")), "messages", {"text"}, /*tools=*/true);
      ASSERT_TRUE(messages.ok()) << messages.status().ToString() << one;
      ChatOptions options;
      options.add_generation_prompt = one.at("add_generation_prompt");
      if (one.at("with_tools") == true) options.tools = recorded.at("tools");
      const Result<MarkedText> text = template_->Render(*messages, options);
      ASSERT_EQ(text.ok(), one.contains("text")) << name << one << text.status().ToString();
      if (text.ok()) {
        EXPECT_EQ(text->text(), one.at("text").get<std::string>()) << name << one;
      }
    }
  }
}

// A vocabulary in which the mark of the form is a control piece.
class MarkedTokenizer final : public testing::FakeTokenizer {
 public:
  static constexpr int32_t kMark = 256;
  MarkedTokenizer() { SetControlPieces({{.text = "[TOOL_CALLS]", .id = kMark}}); }
};

TEST_F(Tools, AMarkThatIsAControlPiece) {
  const MarkedTokenizer tokenizer;
  auto made = ChatTemplate::Make({.text = "{{ tools | tojson }}", .pieces = {}}, &tokenizer, false);
  ASSERT_TRUE(made.ok());
  model_.chat_template = made->get();
  model_.rules.tokenizer = &tokenizer;
  model_.tool_form = ToolForm::kMistral;
  // No grammar writes it: it ends the prompt of calls that must be, and comes as text with auto.
  const auto required = Job(WithTools("\"tool_choice\": \"required\""));
  ASSERT_TRUE(required.ok()) << required.status().ToString();
  const auto& ids = required->common.prompt().tokens().ids();
  EXPECT_EQ(ids[ids.size() - 1], MarkedTokenizer::kMark);
  EXPECT_TRUE(required->options.tools->unmarked);
  EXPECT_THAT(required->common.structured_output().structural_tag(),
              ::testing::Not(HasSubstr("TOOL_CALLS")));
  const auto automatic = Job(WithTools());
  ASSERT_TRUE(automatic.ok()) << automatic.status().ToString();
  EXPECT_FALSE(automatic->options.tools->unmarked);
  EXPECT_FALSE(automatic->common.has_structured_output());
  EXPECT_TRUE(automatic->common.has_skip_special_tokens() &&
              !automatic->common.skip_special_tokens());
}

// Samples of the grammar, read as the output of a model is.
class ToolGrammars : public testing::ChatGrammars {
 protected:
  void SetUp() override {
    ChatGrammars::SetUp();
    UseTemplate(kToolTemplate);
  }
  static ToolEvents Read(const CompletionJob& job, const std::string& text) {
    const auto parser = NewToolParser(*job.options.tools);
    ToolEvents events;
    parser->Append(text, &events);
    parser->Finish(&events);
    return events;
  }
  // The calls of an output, whose arguments are valid under the schemas of kTools; its text is
  // empty.
  static int CheckCalls(const ToolEvents& events, const std::string& text) {
    int calls = 0;
    std::string name, arguments;
    for (const ToolEvent& event : events) {
      EXPECT_TRUE(event.kind != ToolEvent::Kind::kText && event.kind != ToolEvent::Kind::kBroken)
          << text;
      if (event.kind == ToolEvent::Kind::kCall) name = event.text, arguments = "";
      if (event.kind == ToolEvent::Kind::kArguments) arguments += event.text;
      if (event.kind != ToolEvent::Kind::kEnd) continue;
      ++calls;
      const json object = *ParseJson(arguments);
      if (name == "get_weather") {
        EXPECT_EQ(object.size(), 2u) << text;
        EXPECT_TRUE(object.at("city").is_string() && object.at("at") >= 0 && object.at("at") <= 20)
            << text;
      } else {
        EXPECT_EQ(object, json::object()) << text;
      }
    }
    return calls;
  }
};

TEST_F(ToolGrammars, RequiredCallsAreValidInEveryForm) {
  for (const ToolForm tool_form : kToolForms) {
    const std::string form(ToolFormName(tool_form));
    model_.tool_form = tool_form;
    const auto job = Job(WithTools("\"tool_choice\": \"required\""));
    const auto named =
        Job(WithTools(R"("tool_choice": {"type": "function", "function": {"name": "get_time"}})"));
    const auto single =
        Job(WithTools(R"("tool_choice": "required", "parallel_tool_calls": false)"));
    ASSERT_TRUE(job.ok() && named.ok() && single.ok()) << job.status().ToString();
    EXPECT_EQ(named->options.tools->names, std::set<std::string>{"get_time"});
    int sampled = 0, most = 0;
    for (uint32_t seed = 0; seed < 12; ++seed) {
      if (const auto text = Sample(*job, seed)) {
        const int calls = CheckCalls(Read(*job, *text), *text);
        EXPECT_GE(calls, 1) << *text;
        most = std::max(most, calls);
        ++sampled;
      }
      if (const auto text = Sample(*single, seed)) {
        EXPECT_EQ(CheckCalls(Read(*single, *text), *text), 1) << *text;
      }
    }
    EXPECT_GE(sampled, 6) << form;
    EXPECT_GE(most, 2) << form;
    EXPECT_EQ(CheckCalls(Read(*named, Sample(*named, 1).value_or("")), form), 1) << form;
  }
}

// With auto the text is free up to the mark, and a call after it is whole.
TEST_F(ToolGrammars, AutoIsBoundAfterTheMark) {
  const auto job = Job(WithTools());
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  ASSERT_TRUE(job->common.structured_output().has_structural_tag());
  const auto accepts = [&](const std::string& text) { return Accepts(*job, text); };
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"at\": "
      "7}}\n</tool_call>";
  EXPECT_TRUE(accepts(" Hello <b>, <tool_cal and <<tool_"));
  EXPECT_TRUE(accepts(call));
  EXPECT_TRUE(accepts("<" + call + "\n" + call + " done"));
  EXPECT_FALSE(accepts("<tool_call>"));
  EXPECT_FALSE(accepts("<tool_call>x"));
  EXPECT_FALSE(accepts(
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"at\": 7}}\n</tool_call>"));
  EXPECT_FALSE(accepts("<tool_call>\n{\"name\": \"other\""));
  // What cannot have a grammar is free.
  EXPECT_FALSE(Job(WithTools("\"max_tokens\": 40000"))->common.has_structured_output());
  EXPECT_FALSE(Job(WithTools("\"ignore_eos\": true"))->common.has_structured_output());
  // A response format holds for an answer that is no call.
  const auto formatted = Job(WithTools(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}})"));
  ASSERT_TRUE(formatted.ok()) << formatted.status().ToString();
  std::set<std::string> answers;
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const auto text = Sample(*formatted, seed);
    if (text && text->starts_with("\"")) answers.insert(*text);
    if (text && !text->starts_with("\"")) {
      EXPECT_GE(CheckCalls(Read(*formatted, *text), *text), 1);
    }
  }
  EXPECT_THAT(answers, ::testing::IsSubsetOf({"\"yes\"", "\"no\""}));
}

TEST_F(ToolGrammars, SchemasThatAreNotHeld) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array", "uniqueItems": true}}}STRICT}}])";
  const auto with = [&](const std::string& strict) {
    std::string text = tools;
    return text.replace(text.find("STRICT"), 6, strict);
  };
  const auto ebnf = [&](const std::string& more) {
    const auto job = Job(more);
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    return StructuralTagToEbnf(job->common.structured_output().structural_tag(), true);
  };
  EXPECT_TRUE(ebnf(with("")).ok());
  EXPECT_THAT(ebnf(with(", \"strict\": true")).status().message(), HasSubstr("uniqueItems"));
  EXPECT_THAT(ebnf(with("") + ", \"tool_choice\": \"required\"").status().message(),
              HasSubstr("/content/json_schema/properties/a/uniqueItems"));
}

TEST(StructuralTag, ErrorsNameThePath) {
  const auto error = [](const std::string& format) {
    return StructuralTagToEbnf(R"({"type": "structural_tag", "format": )" + format + "}", false)
        .status()
        .message();
  };
  EXPECT_THAT(StructuralTagToEbnf("[]", false).status().message(), HasSubstr("expected an object"));
  EXPECT_THAT(StructuralTagToEbnf("{}", false).status().message(), StartsWith("/type: "));
  EXPECT_THAT(error("5"), StartsWith("/format: "));
  EXPECT_THAT(error(R"({"type": "xml"})"), StartsWith("/format/type: expected const_string"));
  EXPECT_THAT(error(R"({"type": "const_string", "value": 1})"), StartsWith("/format/value: "));
  EXPECT_THAT(error(R"({"type": "or", "elements": []})"), StartsWith("/format/elements: "));
  EXPECT_THAT(
      error(
          R"({"type": "tag", "begin": "a", "content": {"type": "json_schema", "json_schema": {"not": {}}}, "end": ""})"),
      StartsWith("/format/content/json_schema/not: "));
  EXPECT_THAT(
      error(R"({"type": "sequence", "elements": [{"type": "const_string", "value": "", "x": 1}]})"),
      StartsWith("/format/elements/0: expected a member of the format, found \"x\""));
  EXPECT_THAT(error(R"({"type": "triggered_tags", "triggers": ["a", "b"], "tags": []})"),
              StartsWith("/format/triggers: "));
  EXPECT_THAT(
      error(
          R"({"type": "triggered_tags", "triggers": ["a"], "tags": [{"type": "tag", "begin": "b", "content": {"type": "const_string", "value": ""}, "end": ""}]})"),
      HasSubstr("begin with the trigger"));
}

TEST(SchemaToEbnfOfTags, SchemasOfOneGrammarShareRules) {
  EbnfRules rules;
  const auto schema = [] {
    return *ParseJsonValue(R"({"type": "object", "properties": {"a": {"type": "string"}}})");
  };
  ASSERT_TRUE(AddSchema(schema(), false, &rules).ok());
  const size_t bytes = rules.bytes();
  ASSERT_TRUE(AddSchema(schema(), false, &rules).ok());
  EXPECT_LT(rules.bytes(), 2 * bytes);
}

class ChatAnswers : public ::testing::Test {
 protected:
  static CompletionOptions Options() {
    CompletionOptions options;
    options.tools = ToolParsing{.form = ToolForm::kHermes, .names = {"f"}};
    return options;
  }
  // The events of a stream whose text arrives in pieces of `size` bytes.
  static std::vector<json> Stream(const std::string& text, size_t size, const std::string& reason) {
    const auto form = NewChatForm(Options(), {.request_id = "r", .model = "m"});
    Answer answer;
    answer.choices.resize(1);
    std::vector<json> events;
    const auto send = [&] {
      const std::string event = form->Piece(0, &answer);
      if (!event.empty()) events.push_back(json::parse(event.substr(6)));
    };
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      end = std::min(at + size, text.size());
      // Whole characters, as the engine sends them.
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
      answer.choices[0].text += text.substr(at, end - at);
      send();
    }
    answer.choices[0].finish_reason = reason;
    send();
    return events;
  }
  static json Whole(const std::string& text, const std::string& reason) {
    const auto form = NewChatForm(Options(), {.request_id = "r", .model = "m"});
    Answer answer;
    answer.choices.resize(1);
    answer.choices[0].text = text;
    answer.choices[0].finish_reason = reason;
    return json::parse(form->Whole(&answer)).at("choices").at(0);
  }
};

constexpr char kAnswer[] =
    "Wait. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": \"é\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

TEST_F(ChatAnswers, CallsOfAWholeAnswer) {
  const json choice = Whole(kAnswer, "stop");
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  const json& message = choice.at("message");
  EXPECT_EQ(message.at("content"), "Wait.");
  ASSERT_EQ(message.at("tool_calls").size(), 2u);
  const json& call = message.at("tool_calls").at(0);
  EXPECT_EQ(call.at("type"), "function");
  EXPECT_EQ(call.at("function"), json({{"name", "f"}, {"arguments", "{\"x\": 1, \"y\": \"é\"}"}}));
  EXPECT_THAT(call.at("id").get<std::string>(), StartsWith("call_"));
  EXPECT_NE(call.at("id"), message.at("tool_calls").at(1).at("id"));
  EXPECT_EQ(Whole("<tool_call>{\"name\": \"f\"}</tool_call>", "stop").at("message").at("content"),
            nullptr);
  // Text alone, and a call that was cut.
  const json text = Whole("Hello", "stop");
  EXPECT_EQ(text.at("finish_reason"), "stop");
  EXPECT_EQ(text.at("message"),
            json({{"role", "assistant"}, {"content", "Hello"}, {"refusal", nullptr}}));
  const std::string cut = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"";
  EXPECT_EQ(Whole(cut, "length").at("finish_reason"), "length");
  EXPECT_EQ(Whole(cut, "length").at("message").at("content"), cut);
  EXPECT_FALSE(Whole(cut, "length").at("message").contains("tool_calls"));
}

TEST_F(ChatAnswers, CallsOfAStream) {
  const json whole = Whole(kAnswer, "stop").at("message");
  for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    std::string content;
    std::vector<json> calls;
    const std::vector<json> events = Stream(kAnswer, size, "stop");
    for (const json& event : events) {
      const json& delta = event.at("choices").at(0).at("delta");
      content += delta.value("content", "");
      for (const json& part : delta.value("tool_calls", json::array())) {
        const size_t index = part.at("index");
        ASSERT_LE(index, calls.size());
        if (index == calls.size()) {
          calls.push_back(part);
          EXPECT_EQ(part.at("type"), "function");
        } else {
          // Only the first part of a call has its id and name.
          EXPECT_FALSE(part.contains("id"));
          calls[index]["function"]["arguments"].get_ref<std::string&>() +=
              part.at("function").at("arguments").get<std::string>();
        }
      }
    }
    EXPECT_EQ(content, "Wait.") << size;
    ASSERT_EQ(calls.size(), 2u) << size;
    for (size_t i = 0; i < 2; ++i)
      EXPECT_EQ(calls[i].at("function"), whole.at("tool_calls").at(i).at("function")) << size;
    EXPECT_EQ(events[0].at("choices").at(0).at("delta").at("role"), "assistant");
    EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason"), "tool_calls");
    // Arguments arrive as they are generated.
    if (size == 1) {
      EXPECT_GT(events.size(), 20u);
    }
  }
  const std::vector<json> cut =
      Stream("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"", 5, "length");
  EXPECT_EQ(cut.back().at("choices").at(0).at("finish_reason"), "length");
}

// Items of /v1/responses: text, a call, and a call that breaks.
TEST(ResponseItems, AreThoseOfTheOutput) {
  const std::string output =
      "Wait. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call> then "
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1,}}";
  CompletionOptions options;
  options.tools = ToolParsing{.form = ToolForm::kHermes, .names = {"f"}};
  const auto form = [&] {
    return NewResponseForm("resp_r", "{\"store\":true}", {.request_id = "r", .model = "m"},
                           options);
  };
  const auto items = [](const json& response) {
    std::string shown;
    for (const json& item : response.at("output")) {
      shown += StrCat(shown.empty() ? "" : "|", item.at("status").get<std::string>(), " ");
      shown += item.at("type") == "message" ? item.at("content").at(0).at("text").get<std::string>()
                                            : StrCat(item.at("name").get<std::string>(),
                                                     item.at("arguments").get<std::string>());
    }
    return shown;
  };
  Answer answer;
  answer.choices.resize(1);
  answer.choices[0].text = output;
  answer.choices[0].finish_reason = "stop";
  // A whole response has a broken call as text.
  const json whole = json::parse(form()->Whole(&answer));
  EXPECT_EQ(items(whole),
            "completed Wait.|completed f{\"x\": 1}|completed  then <tool_call>{\"name\": \"f\", "
            "\"arguments\": {\"x\": 1,}}");
  EXPECT_EQ(whole.at("output").at(0).at("id"), "msg_r");
  EXPECT_EQ(whole.at("output").at(1).at("id"), "fc_r_1");

  const auto stream = form();
  answer = {};
  answer.choices.resize(1);
  std::string events = stream->Begin(Answer());
  for (size_t at = 0; at < output.size(); at += 3) {
    answer.choices[0].text = output.substr(at, 3);
    events += stream->Piece(0, &answer);
  }
  answer.choices[0].finish_reason = "stop";
  events += stream->Piece(0, &answer);
  events += stream->End(answer);
  int64_t sequence = 0;
  std::string last, open;
  for (size_t at = events.find("data: "); at != std::string::npos;
       at = events.find("data: ", at + 1)) {
    last = events.substr(at + 6, events.find('\n', at) - at - 6);
    const json event = json::parse(last);
    EXPECT_EQ(event.at("sequence_number"), sequence++);
    // An item begins when the one before it has ended.
    if (event.at("type") == "response.output_item.added") {
      EXPECT_EQ(open, "");
      open = event.at("item").at("id");
    } else if (event.contains("item_id")) {
      EXPECT_EQ(event.at("item_id"), open);
    } else if (event.at("type") == "response.output_item.done") {
      EXPECT_EQ(event.at("item").at("id"), open);
      open = "";
    }
  }
  EXPECT_EQ(
      items(json::parse(last).at("response")),
      "completed Wait.|completed f{\"x\": 1}|completed  then|incomplete f{\"x\": 1,|completed "
      " <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1,}}");
}

TEST(CallIds, HaveTheLengthOfTheForm) {
  EXPECT_EQ(NewCallId(ToolForm::kMistral).size(), 9u);
  EXPECT_EQ(NewCallId(ToolForm::kHermes).size(), 29u);
  EXPECT_NE(NewCallId(ToolForm::kHermes), NewCallId(ToolForm::kHermes));
}

}  // namespace
}  // namespace polysketch
