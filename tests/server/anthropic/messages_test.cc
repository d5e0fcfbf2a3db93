#include <algorithm>
#include <map>
#include <memory>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/anthropic/messages.h"
#include "tests/server/openai/chat_fixture.h"

namespace polysketch {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTemplate[] =
    "{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{%- for message in messages %}[{{ message.role }}"
    "{%- if message.tool_call_id %} of {{ message.tool_call_id }}{% endif %}: "
    "{%- if message.content is not none %}{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }} {{ call.id }}</tool_call>{% endfor %}]"
    "{%- endfor %}{%- if add_generation_prompt %}[assistant:{% endif %}";

constexpr char kTools[] = R"("tools": [{"name": "get_weather", "description": "d", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "at": {"type": "integer"}}, "required": ["city", "at"]},
    "cache_control": {"type": "ephemeral"}},
    {"type": "custom", "name": "get_time", "input_schema": {"type": "object"}}])";

class Messages : public testing::ChatModel {
 protected:
  void SetUp() override {
    ChatModel::SetUp();
    UseTemplate(kTemplate);
    ASSERT_EQ(model_.tool_form, ToolForm::kHermes);
  }
  Result<CompletionJob> Job(const std::string& body) {
    const auto parsed = ParseCompletionBody(body);
    if (!parsed.ok()) return parsed.status();
    return ToMessagesJob(*parsed, model_);
  }
  // A body with a message of a user, and more fields.
  static std::string Body(const std::string& more = "") {
    return StrCat(R"({"messages": [{"role": "user", "content": "x"}])", more.empty() ? "" : ", ",
                  more, "}");
  }
  static std::string WithMessages(const std::string& messages, const std::string& more = "") {
    return StrCat("{\"messages\": [", messages, "]", more.empty() ? "" : ", ", more, "}");
  }
  std::string ErrorOf(const std::string& body) {
    const auto job = Job(body);
    EXPECT_FALSE(job.ok()) << body;
    return job.ok() ? "" : job.status().message();
  }
  // The prompt of a body, as text without BOS.
  std::string PromptOf(const std::string& body) {
    const auto job = Job(body);
    EXPECT_TRUE(job.ok()) << job.status().ToString() << body;
    if (!job.ok()) return "";
    IncrementalDecoder decoder(tokenizer_.get(), /*continued=*/false);
    std::string text;
    for (const int32_t id : job->common.prompt().tokens().ids()) text += decoder.Append(id);
    return text + decoder.Finish();
  }
};

TEST_F(Messages, EveryParameterArrives) {
  const auto job = Job(Body(R"("model": "m", "max_tokens": 7, "temperature": 0.5, "top_p": 0.25,
      "top_k": 3, "stop_sequences": ["a", "b"], "stream": true, "seed": 9, "metadata": {"user_id": "u"},
      "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "thinking": {"type": "disabled"},
      "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object", "b": 1, "a": 2}}})"));
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->options.model, "m");
  EXPECT_TRUE(job->options.stream);
  EXPECT_FALSE(job->options.tools.has_value());
  const v1::CompleteRequest& request = job->common;
  EXPECT_EQ(request.max_tokens(), 7);
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.sampling().top_k(), 3);
  EXPECT_EQ(request.sampling().seed(), 9u);
  EXPECT_THAT(request.stop(), ElementsAre("a", "b"));
  EXPECT_EQ(request.structured_output().json_schema(), R"({"type":"object","b":1,"a":2})");
  EXPECT_FALSE(Job(Body())->common.has_max_tokens());
}

TEST_F(Messages, MessagesAreThoseOfTheTemplate) {
  EXPECT_EQ(PromptOf(Body()), "[user:x][assistant:");
  EXPECT_EQ(PromptOf(Body(R"("system": "s")")), "[system:s][user:x][assistant:");
  EXPECT_EQ(PromptOf(Body(
                R"("system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
                              {"type": "text", "text": "t"}])")),
            "[system:s\nt][user:x][assistant:");
  // Blocks become lines, and messages of one role after the other are one.
  EXPECT_EQ(
      PromptOf(WithMessages(
          R"({"role": "user", "content": [{"type": "text", "text": "a", "citations": null}, {"type": "text", "text": "b"}]},
                   {"role": "user", "content": "c"}, {"role": "system", "content": "d"})")),
      "[user:a\nb\nc][system:d][assistant:");
}

// As an agent sends them back: the input of a call keeps the order of its members.
TEST_F(Messages, CallsAndResults) {
  EXPECT_EQ(
      PromptOf(WithMessages(R"({"role": "user", "content": "x"},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"z": 1, "a": {"y": 2, "b": 3}}},
            {"type": "tool_use", "id": "2", "name": "g", "input": {}}]},
          {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "s"}]},
            {"type": "tool_result", "tool_use_id": "2", "is_error": true}, {"type": "text", "text": "So?"}]})")),
      "[user:x][assistant:I look.<tool_call>f {\"z\": 1, \"a\": {\"y\": 2, \"b\": 3}} 1</tool_call>"
      "<tool_call>g {} 2</tool_call>][tool of 1:r\ns][tool of 2:][user:So?][assistant:");
}

TEST_F(Messages, AnAnswerThatHasBegunIsContinued) {
  const std::string begun =
      R"({"role": "user", "content": "x"}, {"role": "assistant", "content": "The best is"})";
  EXPECT_EQ(PromptOf(WithMessages(begun)), "[user:x][assistant:The best is");
  EXPECT_THAT(ErrorOf(WithMessages(R"({"role": "assistant", "content": " "})")),
              StartsWith("messages: expected text in a last message"));
  EXPECT_THAT(
      ErrorOf(WithMessages(
          R"({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]})")),
      StartsWith("messages: expected a tool_result after"));
}

TEST_F(Messages, Tools) {
  const std::string prompt = PromptOf(Body(kTools));
  EXPECT_THAT(
      prompt,
      StartsWith(
          R"(<tools>[{"type": "function", "function": {"name": "get_weather", "description": "d", )"
          R"("parameters": {"type": "object", "properties": {"city": {"type": "string"}, "at")"));
  EXPECT_THAT(prompt, ::testing::Not(HasSubstr("cache_control")));
  const auto with = [&](const std::string& choice) {
    return Job(Body(StrCat(kTools, ", \"tool_choice\": ", choice)));
  };
  const auto free = Job(Body(kTools));
  ASSERT_TRUE(free->options.tools.has_value());
  EXPECT_THAT(free->options.tools->names, ElementsAre("get_time", "get_weather"));
  EXPECT_GT(free->options.tools->max_calls, 1);
  EXPECT_EQ(
      with(R"({"type": "auto", "disable_parallel_tool_use": true})")->options.tools->max_calls, 1);
  const auto any = with(R"({"type": "any"})");
  EXPECT_THAT(any->common.structured_output().structural_tag(), HasSubstr("get_time"));
  const auto named = with(R"({"type": "tool", "name": "get_weather"})");
  EXPECT_THAT(named->options.tools->names, ElementsAre("get_weather"));
  EXPECT_THAT(named->common.structured_output().structural_tag(),
              ::testing::Not(HasSubstr("get_time")));
  EXPECT_FALSE(with(R"({"type": "none"})")->options.tools.has_value());
  EXPECT_FALSE(Job(Body(R"("tools": [], "tool_choice": {"type": "auto"})"))->options.tools);
}

TEST_F(Messages, ErrorsNameTheField) {
  struct Case {
    std::string body;
    const char* message;
  };
  const auto block = [](const std::string& role, const std::string& block) {
    return WithMessages(StrCat(R"({"role": ")", role, R"(", "content": [)", block, "]}"));
  };
  const std::vector<Case> cases = {
      {"[]", "the body: expected a JSON object, found an array"},
      {"{}", "messages: expected an array of messages, found none"},
      {R"({"messages": []})", "messages: expected an array of messages, found an empty array"},
      {R"({"messages": {}})", "messages: expected an array of messages, found an object"},
      {R"({"messages": [5]})", "messages[0]: expected an object, found an integer"},
      {WithMessages(R"({"role": "king", "content": "x"})"),
       "messages[0].role: expected user, assistant or system, found \"king\""},
      {WithMessages(R"({"role": "user"})"), "messages[0].content: expected a string or an array"},
      {WithMessages(R"({"role": "user", "content": []})"),
       "messages[0].content: expected a string or an array of blocks, found an empty array"},
      {block("user", "5"), "messages[0].content[0]: expected an object"},
      {block("user", R"({"type": "image", "source": {}})"),
       "messages[0].content[0].type: expected text or tool_result, found \"image\""},
      {block("user", R"({"text": "x"})"),
       "messages[0].content[0].type: expected text or tool_result, found none: the model"},
      {block("user", R"({"type": 5})"),
       "messages[0].content[0].type: expected a string, found an integer"},
      {block("user", R"({"type": "tool_use"})"), "messages[0].content[0].type: "},
      {block("assistant", R"({"type": "tool_result"})"), "messages[0].content[0].type: "},
      {block("user", R"({"type": "text"})"), "messages[0].content[0].text: expected a string"},
      {block("user", R"({"type": "text", "text": "x", "citation": 1})"),
       "messages[0].content[0].citation: expected a field of the API"},
      {block("user", R"({"type": "text", "text": "x", "cache_control": 5})"),
       "messages[0].content[0].cache_control: expected an object"},
      {block("user", R"({"type": "tool_result"})"), "messages[0].content[0].tool_use_id: "},
      {block("user", R"({"type": "tool_result", "tool_use_id": "1", "content": 5})"),
       "messages[0].content[0].content: expected a string or an array of parts"},
      {block("user",
             R"({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]})"),
       "messages[0].content[0].content[0].type: expected text, found \"image\""},
      {block("assistant", R"({"type": "tool_use", "name": "f", "input": {}})"),
       "messages[0].content[0].id: "},
      {block("assistant", R"({"type": "tool_use", "id": "1", "input": {}})"),
       "messages[0].content[0].name: "},
      {block("assistant", R"({"type": "tool_use", "id": "1", "name": "f", "input": 5})"),
       "messages[0].content[0].input: expected an object, found an integer"},
      {block("assistant", R"({"type": "tool_use", "id": "1", "name": "f"})"),
       "messages[0].content[0].input: expected an object, found none"},
      {Body(R"("system": 5)"), "system: expected a string or an array of parts"},
      {Body(R"("system": [{"type": "image"}])"), "system[0].type: "},
      {Body(R"("system": [{"type": 5}])"), "system[0].type: expected a string, found an integer"},
      {Body(R"("system": [{"text": "x"}])"), "system[0].type: expected text, found none"},
      {Body(R"("max_tokens": -1)"), "max_tokens: expected 0 to 2147483647, found -1"},
      {Body(R"("max_tokens": 9223372036854775808)"),
       "max_tokens: expected 0 to 2147483647, found 9223372036854775808"},
      {Body(R"("temperature": 1e39)"), "temperature: expected a number in [0, 100], found 1e+39"},
      {Body(R"("stop_sequences": [5])"), "stop_sequences[0]: expected a string, found an integer"},
      {Body(R"("stream": 1)"), "stream: "},
      {Body(R"("max_token": 1)"), "max_token: expected a field of the API"},
      {Body(R"("container": "c")"), "container: expected none"},
      {Body(R"("thread": {"type": "create"})"), "thread: expected none"},
      {Body(R"("mcp_servers": [{}])"), "mcp_servers: expected none"},
      {Body(R"("context_management": {"edits": []})"), "context_management: expected none"},
      {Body(R"("thinking": {"type": "loud"})"), "thinking.type: expected disabled"},
      {Body(R"("thinking": {"type": "enabled", "budget_tokens": -5})"), "thinking.budget_tokens: "},
      {Body(R"("output_config": {"format": {"type": "xml"}})"), "output_config.format.type: "},
      {Body(R"("output_config": {"formt": 1})"), "output_config.formt: "},
      {Body(R"("tools": 5)"), "tools: expected an array"},
      {Body(R"("tools": [5])"), "tools[0]: expected an object"},
      {Body(R"("tools": [{"name": "f"}])"), "tools[0].input_schema: expected a JSON Schema"},
      {Body(R"("tools": [{"name": "f", "input_schema": {"type": "array"}}])"),
       "tools[0].input_schema.type: expected \"object\""},
      {Body(R"("tools": [{"name": "a b", "input_schema": {}}])"), "tools[0].name: "},
      {Body(R"("tools": [{"input_schema": {}}])"), "tools[0].name: "},
      {Body(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
       "tools[0].type: expected custom, found \"web_search_20250305\""},
      {Body(R"("tools": [{"name": "f", "input_schema": {}, "strct": 1}])"), "tools[0].strct: "},
      {Body(R"("tools": [{"name": "f", "input_schema": {}}, {"name": "f", "input_schema": {}}])"),
       "tools[1].name: expected each name once"},
      {Body(R"("tools": [{"name": "f", "input_schema": {}, "defer_loading": true}])"),
       "tools[0].defer_loading: "},
      {Body(
           R"("tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution"]}])"),
       "tools[0].allowed_callers: "},
      {Body(R"("tool_choice": "any")"), "tool_choice: expected an object"},
      {Body(R"("tool_choice": {"type": "any"})"), "tool_choice: expected tools beside it"},
      {Body(R"("tool_choice": {"type": "some"})"), "tool_choice.type: expected auto, any"},
      {Body(R"("tool_choice": {})"),
       "tool_choice.type: expected auto, any, tool or none, found none"},
      {Body(StrCat(kTools, R"(, "tool_choice": {"type": "tool", "name": "h"})")),
       "tool_choice.name: expected the name of a tool of the request, found \"h\""},
      {Body(StrCat(kTools, R"(, "tool_choice": {"type": "tool"})")), "tool_choice.name: "},
  };
  for (const Case& c : cases) EXPECT_THAT(ErrorOf(c.body), StartsWith(c.message)) << c.body;
  model_.chat_template = nullptr;
  EXPECT_THAT(ErrorOf(Body()), StartsWith("messages: expected a model with a chat template"));
}

// --- answers ---

struct SentEvent {
  std::string name;
  json data;
};

class MessagesAnswers : public ::testing::Test {
 protected:
  static std::unique_ptr<AnswerForm> Form(bool tools) {
    CompletionOptions options;
    if (tools) options.tools = ToolParsing{.form = ToolForm::kHermes, .names = {"f"}};
    return NewMessagesForm(options, {.request_id = "r", .model = "m"});
  }
  static Answer AnswerOf(const std::string& reason) {
    Answer answer;
    answer.choices.resize(1);
    answer.prompt_tokens = {12};
    answer.choices[0].finish_reason = reason;
    answer.usage.set_prompt_tokens(12);
    answer.usage.set_cached_tokens(8);
    answer.usage.set_completion_tokens(3);
    return answer;
  }
  static json Whole(const std::string& text, const std::string& reason, bool tools = true,
                    const std::string& matched = "") {
    Answer answer = AnswerOf(reason);
    answer.choices[0].text = text;
    answer.choices[0].matched_stop = matched;
    return json::parse(Form(tools)->Whole(&answer));
  }
  static std::vector<SentEvent> EventsOf(const std::string& bytes) {
    std::vector<SentEvent> events;
    std::istringstream lines(bytes);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("event: ")) events.push_back({line.substr(7), {}});
      if (line.starts_with("data: ")) events.back().data = json::parse(line.substr(6));
    }
    for (const SentEvent& event : events) EXPECT_EQ(event.data.at("type"), event.name);
    return events;
  }
  // The message that the events of a stream make, whose text arrives in pieces of `size` bytes.
  static json Stream(const std::string& text, size_t size, const std::string& reason,
                     bool tools = true) {
    const auto form = Form(tools);
    Answer answer = AnswerOf("");
    std::string bytes = form->Begin(answer);
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      end = std::min(at + size, text.size());
      // Whole characters, as the engine sends them.
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
      answer.choices[0].text += text.substr(at, end - at);
      bytes += form->Piece(0, &answer);
    }
    answer.choices[0].finish_reason = reason;
    bytes += form->Piece(0, &answer);
    bytes += form->End(answer);
    return Collect(EventsOf(bytes));
  }
  // As the clients of the API put a stream together.
  static json Collect(const std::vector<SentEvent>& events) {
    json message;
    std::string input;
    int open = -1;
    for (const auto& [name, data] : events) {
      if (name == "message_start") {
        EXPECT_TRUE(message.is_null());
        message = data.at("message");
        EXPECT_EQ(message.at("usage").at("input_tokens"), 12);
      } else if (name == "content_block_start") {
        EXPECT_EQ(open, -1) << data;
        open = data.at("index");
        EXPECT_EQ(static_cast<size_t>(open), message.at("content").size());
        message["content"].push_back(data.at("content_block"));
        input.clear();
      } else if (name == "content_block_delta") {
        EXPECT_EQ(data.at("index"), open);
        const json& delta = data.at("delta");
        json& block = message["content"].back();
        if (delta.at("type") == "text_delta") {
          EXPECT_EQ(block.at("type"), "text");
          block["text"].get_ref<std::string&>() += delta.at("text").get<std::string>();
        } else {
          EXPECT_EQ(delta.at("type"), "input_json_delta");
          EXPECT_EQ(block.at("type"), "tool_use");
          input += delta.at("partial_json").get<std::string>();
        }
      } else if (name == "content_block_stop") {
        EXPECT_EQ(data.at("index"), open);
        if (json::accept(input)) message["content"].back()["input"] = json::parse(input);
        open = -1;
      } else if (name == "message_delta") {
        EXPECT_EQ(open, -1);
        message.update(data.at("delta"));
        message["usage"].update(data.at("usage"));
      } else if (name == "message_stop") {
        EXPECT_EQ(&data, &events.back().data);
      } else {
        EXPECT_EQ(name, "ping");
      }
    }
    EXPECT_EQ(events.back().name, "message_stop");
    return message;
  }
  // Without what is random.
  static json WithoutIds(json message) {
    for (json& block : message["content"]) {
      if (!block.contains("id")) continue;
      EXPECT_THAT(block.at("id").get<std::string>(), StartsWith("toolu_"));
      block.erase("id");
    }
    return message;
  }
};

constexpr char kAnswer[] =
    "Wait. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": \"é\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

TEST_F(MessagesAnswers, AWholeMessage) {
  const json text = Whole("Hello é", "stop", false);
  EXPECT_EQ(text,
            json::parse(R"({"id": "msg_r", "type": "message", "role": "assistant", "model": "m",
      "content": [{"type": "text", "text": "Hello é"}], "stop_reason": "end_turn", "stop_sequence": null,
      "usage": {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 3}})"));
  EXPECT_EQ(Whole("", "length", false).at("content"), json::array());
  EXPECT_EQ(Whole("", "length", false).at("stop_reason"), "max_tokens");
  const json stopped = Whole("Hel", "stop", false, "lo");
  EXPECT_EQ(stopped.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence"), "lo");
}

TEST_F(MessagesAnswers, CallsOfAWholeMessage) {
  const json message = WithoutIds(Whole(kAnswer, "stop"));
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
  EXPECT_EQ(message.at("content"), json::parse(R"([{"type": "text", "text": "Wait."},
      {"type": "tool_use", "name": "f", "input": {"x": 1, "y": "é"}}, {"type": "tool_use", "name": "f", "input": {}}])"));
  // A call that the end of the output cut is text.
  const std::string cut = "Wait. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"";
  EXPECT_EQ(Whole(cut, "length").at("content"), json({{{"type", "text"}, {"text", cut}}}));
  EXPECT_EQ(Whole(cut, "length").at("stop_reason"), "max_tokens");
}

TEST_F(MessagesAnswers, AStreamMakesTheWholeMessage) {
  for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    EXPECT_EQ(WithoutIds(Stream(kAnswer, size, "stop")), WithoutIds(Whole(kAnswer, "stop")));
    EXPECT_EQ(Stream("Hello é", size, "stop", false), Whole("Hello é", "stop", false));
    EXPECT_EQ(Stream("", size, "length", false), Whole("", "length", false));
  }
  // Calls that are cut or break are text in a stream too, also where their arguments are complete.
  for (const std::string text : {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"",
                                 "Wait. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}",
                                 "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}, no"}) {
    for (const std::string reason : {"length", "stop"}) {
      const json message = Stream(text, 3, reason);
      EXPECT_EQ(message, Whole(text, reason));
      EXPECT_EQ(message.at("content"), json({{{"type", "text"}, {"text", text}}}));
      EXPECT_EQ(message.at("stop_reason"), reason == "length" ? "max_tokens" : "end_turn");
    }
  }
}

TEST_F(MessagesAnswers, AFailureIsAnEvent) {
  const auto events = EventsOf(
      Form(false)->Failure(Unavailable("the server is draining").WithReason(Reason::kDraining)));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].data, json::parse(R"({"type": "error", "error": {"type": "overloaded_error",
      "message": "the server is draining", "details": {"error_code": "DRAINING"}}, "request_id": "r"})"));
}

}  // namespace
}  // namespace polysketch
