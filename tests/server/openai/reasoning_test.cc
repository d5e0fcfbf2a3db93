#include "server/openai/reasoning.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/openai/answer_form.h"
#include "server/openai/responses_request.h"
#include "tests/server/openai/chat_fixture.h"

namespace polysketch {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The form of Qwen 3: reasoning of earlier turns, and none with enable_thinking false.
constexpr char kTemplate[] =
    "{%- if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{%- for message in messages %}{{ bos_token + message.role + ': ' }}"
    "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{%- if message.content %}{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls %}<tool_call>{{ call.function.name }}</tool_call>{% endfor "
    "%}"
    "{{- eos_token }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{%- elif begin %}<think>\n{% endif %}{% endif %}";

class Reasoning : public testing::ChatGrammars {
 protected:
  void SetUp() override {
    ChatGrammars::SetUp();
    UseTemplate(kTemplate);
    model_.reasoning = DetectReasoning(kTemplate);
  }
  std::string Prompt(const CompletionJob& job) {
    const auto& ids = job.common.prompt().tokens().ids();
    std::string text;
    for (const int32_t id : ids)
      text += tokenizer_->IsControl(id) ? tokenizer_->Piece(id) : tokenizer_->PieceBytes(id);
    return text;
  }
};

TEST_F(Reasoning, ParametersSayWhetherItIsRead) {
  const auto reads = [&](const std::string& more) {
    const auto job = Job(more);
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    return job.ok() && job->options.reasoning.has_value();
  };
  EXPECT_TRUE(reads(""));
  EXPECT_TRUE(reads(R"("reasoning_format": "deepseek")"));
  EXPECT_FALSE(reads(R"("reasoning_format": "none")"));
  EXPECT_FALSE(reads(R"("chat_template_kwargs": {"enable_thinking": false})"));
  EXPECT_FALSE(reads(R"("reasoning_effort": "none")"));
  EXPECT_TRUE(reads(R"("reasoning_effort": "low")"));
  EXPECT_TRUE(Job("")->options.include_reasoning);
  EXPECT_FALSE(Job(R"("include_reasoning": false)")->options.include_reasoning);
  EXPECT_THAT(ErrorOf(R"("reasoning_format": "x")"), StartsWith("reasoning_format: "));
  EXPECT_FALSE(Job("")->options.reasoning->reasons());
  EXPECT_TRUE(Job(R"("chat_template_kwargs": {"begin": true})")->options.reasoning->reasons());
  model_.reasoning = std::nullopt;
  EXPECT_FALSE(reads(""));
}

TEST_F(Reasoning, PrecedesWhatConstrainsTheOutput) {
  const std::string choice = R"("guided_choice": ["yes", "no"])";
  const auto may = Job(choice),
             begun = Job(choice + R"(, "chat_template_kwargs": {"begin": true})"),
             never = Job(choice + R"(, "reasoning_effort": "none")");
  ASSERT_TRUE(may.ok() && begun.ok() && never.ok());
  EXPECT_TRUE(Accepts(*may, "yes"));
  EXPECT_TRUE(Accepts(*may, "<think>\nor no?</thin</think>\n\nno"));
  EXPECT_FALSE(Accepts(*may, "<think>yes"));
  EXPECT_FALSE(Accepts(*may, "<think>x</think>maybe"));
  EXPECT_FALSE(Accepts(*may, "hm</think>yes"));
  EXPECT_TRUE(Accepts(*begun, "hm</think>yes"));
  EXPECT_FALSE(Accepts(*begun, "yes"));
  EXPECT_TRUE(Accepts(*never, "yes"));
  EXPECT_FALSE(Accepts(*never, "<think></think>yes"));
  for (
      const char* const more :
      {R"("guided_regex": "[0-9]{2}")",
       R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 42}}})"}) {
    const auto job = Job(more);
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    EXPECT_TRUE(Accepts(*job, "<think>6 * 7</think>42")) << more;
    EXPECT_TRUE(Accepts(*job, "42")) << more;
    EXPECT_FALSE(Accepts(*job, "<think>6 * 7</think>x")) << more;
  }
  EXPECT_THAT(ErrorOf(R"("guided_grammar": "root ::= \"a\"")"), StartsWith("guided_grammar: "));
  // Calls that must be.
  const auto tools = Job(
      R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required")");
  ASSERT_TRUE(tools.ok()) << tools.status().ToString();
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_TRUE(Accepts(*tools, "<think>I call.</think>\n\n" + call));
  EXPECT_TRUE(Accepts(*tools, call));
  EXPECT_FALSE(Accepts(*tools, "<think>I call.</think>\n\nNo."));
}

TEST_F(Reasoning, TheTemplateGetsThatOfEarlierTurns) {
  for (const char* const name : {"reasoning_content", "reasoning"}) {
    const auto body = ParseCompletionBody(StrCat(
        R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", ")",
        name, R"(": "because"}, {"role": "user", "content": "z"}]})"));
    const auto job = ToChatJob(*body, model_);
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    EXPECT_THAT(Prompt(*job), HasSubstr("<think>because</think>y"));
  }
  // Items of a response: reasoning and what follows it are one message.
  const auto prompt = [&](const std::string& items) {
    const auto body = ParseCompletionBody(R"({"input": [)" + items + "]}");
    const auto job = ToResponseJob(*body, model_);
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    return job.ok() ? Prompt(job->job) : "";
  };
  const std::string reasoning =
      R"({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "because"}]})";
  EXPECT_THAT(
      prompt(reasoning +
             R"(, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"})"),
      HasSubstr("assistant: <think>because</think>y"));
  EXPECT_THAT(prompt(reasoning +
                     R"(, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                     {"type": "function_call_output", "call_id": "c", "output": "5"})"),
              HasSubstr("assistant: <think>because</think><tool_call>f</tool_call>"));
}

// What CompletionRun makes of an output.
void Add(const std::string& reasoning, const std::string& text, Answer* answer) {
  answer->choices.resize(1);
  answer->choices[0].reader.emplace(kThinkMarks, false);
  answer->choices[0].reasoning += reasoning;
  answer->choices[0].text += text;
}

TEST(ReasoningForms, TokensAreCountedOneByOne) {
  const auto tokenizer =
      *Tokenizer::Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
  const std::vector<int32_t> ids = *tokenizer->Encode("<think>Let me see.</think>Yes, it is.");
  ReasoningCounter counter(ReasoningReader(kThinkMarks, false),
                           IncrementalDecoder(tokenizer.get(), /*continued=*/false));
  std::string text;
  IncrementalDecoder decoder(tokenizer.get(), /*continued=*/false);
  size_t counted = 0, want = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (want == 0 && (text += decoder.Append(ids[i])).find("</think>") != std::string::npos)
      want = i + 1;
    if (counter.IsReasoning(ids[i])) counted = i + 1;
  }
  EXPECT_GT(want, 0u);
  EXPECT_EQ(counted, want);
}

// Control pieces other than the marks leave the text, however it comes.
TEST(ReasoningForms, ControlPiecesLeaveTheText) {
  const auto tokenizer =
      *Tokenizer::Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
  const int32_t eos = tokenizer->eos_id(), bos = tokenizer->bos_id();
  const std::string end(tokenizer->Piece(eos)), begin(tokenizer->Piece(bos));
  const std::string text = "a" + end + "b" + begin + "c<" + end.substr(0, 2);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ControlFilter filter(tokenizer.get(), {begin});
    filter.Add(eos);
    filter.Add(bos);
    std::string shown = filter.Take(text.substr(0, cut), false);
    shown += filter.Take(text.substr(cut), true);
    EXPECT_EQ(shown, "ab" + begin + "c<" + end.substr(0, 2)) << cut;
  }
}

// A prefix of the client is no output: a call in it is text.
TEST(ReasoningForms, APrefixIsNotRead) {
  CompletionOptions options;
  options.tools.emplace();
  options.tools->form = ToolForm::kHermes;
  options.tools->names = {"f"};
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  for (const bool stream : {false, true}) {
    options.stream = stream;
    const auto form = NewChatForm(options, {.request_id = "r", .model = "m"});
    Answer answer;
    answer.choices.resize(1);
    answer.choices[0].prefix = "Before " + call;
    answer.choices[0].text = " and " + call;
    answer.choices[0].finish_reason = "stop";
    const json choice = json::parse(stream ? form->Piece(0, &answer).substr(6)
                                           : form->Whole(&answer))["choices"][0];
    const json& message = choice[stream ? "delta" : "message"];
    EXPECT_EQ(message["content"], "Before " + call + " and");
    EXPECT_EQ(message["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
}

TEST(ReasoningForms, ChatCompletions) {
  CompletionOptions options;
  options.reasoning.emplace(kThinkMarks, false);
  const auto form = NewChatForm(options, {.request_id = "r", .model = "m"});
  Answer answer;
  Add("Hm.", "Yes", &answer);
  answer.choices[0].reasoning_tokens = 3;
  answer.choices[0].finish_reason = "stop";
  const json whole = json::parse(form->Whole(&answer));
  EXPECT_EQ(whole.at("choices").at(0).at("message"), json({{"role", "assistant"},
                                                           {"content", "Yes"},
                                                           {"refusal", nullptr},
                                                           {"reasoning_content", "Hm."}}));
  EXPECT_EQ(whole.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 3);
  const auto stream = NewChatForm(options, {.request_id = "r", .model = "m"});
  answer = {};
  Add("Hm", "", &answer);
  const auto delta = [&] {
    const std::string event = stream->Piece(0, &answer);
    return event.empty() ? json() : json::parse(event.substr(6))["choices"][0]["delta"];
  };
  EXPECT_EQ(delta(), json({{"role", "assistant"}, {"content", ""}, {"reasoning_content", "Hm"}}));
  EXPECT_EQ(delta(), json());
  Add(".", "Yes", &answer);
  EXPECT_EQ(delta(), json({{"content", "Yes"}, {"reasoning_content", "."}}));
}

TEST(ReasoningForms, ItemsOfResponses) {
  CompletionOptions options;
  options.reasoning.emplace(kThinkMarks, false);
  const auto form =
      NewResponseForm("resp_r", "{\"store\":true}", {.request_id = "r", .model = "m"}, options);
  Answer answer;
  std::string events = form->Begin(answer);
  Add("Hm", "", &answer);
  events += form->Piece(0, &answer);
  Add(".", "", &answer);
  events += form->Piece(0, &answer);
  Add("", "Yes", &answer);
  events += form->Piece(0, &answer);
  answer.choices[0].finish_reason = "stop";
  answer.choices[0].reasoning_tokens = 2;
  events += form->Piece(0, &answer);
  events += form->End(answer);
  std::vector<std::string> types;
  std::string last;
  for (size_t at = events.find("data: "); at != std::string::npos;
       at = events.find("data: ", at + 1)) {
    last = events.substr(at + 6, events.find('\n', at) - at - 6);
    types.push_back(json::parse(last).at("type").get<std::string>().substr(9));
  }
  EXPECT_EQ(types, (std::vector<std::string>{
                       "created", "in_progress", "output_item.added", "content_part.added",
                       "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done",
                       "content_part.done", "output_item.done", "output_item.added",
                       "content_part.added", "output_text.delta", "output_text.done",
                       "content_part.done", "output_item.done", "completed"}));
  const json response = json::parse(last).at("response");
  const json& item = response.at("output").at(0);
  EXPECT_EQ(item.at("type"), "reasoning");
  EXPECT_EQ(item.at("content"), json::parse(R"([{"type": "reasoning_text", "text": "Hm."}])"));
  EXPECT_EQ(item.at("summary"), json::array());
  EXPECT_EQ(response.at("output").at(1).at("content").at(0).at("text"), "Yes");
  EXPECT_EQ(response.at("usage").at("output_tokens_details").at("reasoning_tokens"), 2);
}

}  // namespace
}  // namespace polysketch
