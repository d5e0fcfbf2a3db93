#include "server/chat/chat_template.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gtest/gtest.h"
#include "server/chat/interpreter.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using nlohmann::json;
using Messages = std::vector<ChatMessage>;

std::string SourceFile(const std::string& path) {
  const char* root = std::getenv("POLYSKETCH_SOURCE_DIR");
  return StrCat(root == nullptr ? "." : root, "/", path);
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

const Tokenizer& DemoTokenizer() {
  static const Result<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(SourceFile("models/demo/tokenizer.model"));
  return **tokenizer;
}

std::unique_ptr<ChatTemplate> Make(const std::string& text) {
  Result<std::unique_ptr<ChatTemplate>> made =
      ChatTemplate::Make({.text = text, .pieces = {}}, &DemoTokenizer(), true);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *std::move(made) : nullptr;
}

std::unique_ptr<ChatTemplate> Recorded(const std::string& name) {
  return Make(Read(SourceFile("tests/server/chat/templates/" + name + ".jinja")));
}

// The text of a template, or its error.
std::string RenderAll(const std::string& text, const Messages& messages = {{"user", "hi", ""}},
                      const json& variables = nullptr) {
  Result<std::unique_ptr<ChatTemplate>> made =
      ChatTemplate::Make({.text = text, .pieces = {}}, &DemoTokenizer(), true);
  if (!made.ok()) return made.status().message();
  ChatOptions options;
  options.variables = variables;
  const Result<MarkedText> rendered = (*made)->Render(messages, options);
  return rendered.ok() ? rendered->text() : rendered.status().message();
}

// What a template makes of messages is held before it is made.
TEST(ChatTemplate, WhatIsMadeIsHeldBefore) {
  const auto made = ChatTemplate::Make(
      {.text = "{% for i in range(100) %}{{ messages[0]['content'] + '!' }}{% endfor %}",
       .pieces = {}},
      &DemoTokenizer(), true);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  int64_t held = 0, limit = int64_t{1} << 30;
  ChatOptions options;
  options.hold = [&](int64_t bytes) {
    if (held + bytes > limit) return Status(ResourceExhausted("full"));
    held += bytes;
    return Status();
  };
  const Messages messages = {{"user", std::string(10'000, 'x'), ""}};
  const Result<MarkedText> text = (*made)->Render(messages, options);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_GE(held, static_cast<int64_t>(text->size()));
  EXPECT_LE(held, 10 * static_cast<int64_t>(text->size()));
  held = 0;
  limit = 500'000;
  EXPECT_EQ((*made)->Render(messages, options).status().code(), Code::kResourceExhausted);
  EXPECT_EQ((*made)->Render(messages, options).status().message(), "full");
}

TEST(ChatTemplate, TextsAreThoseOfJinja) {
  const json recorded = json::parse(Read(SourceFile("tests/server/chat/recorded.json")));
  EXPECT_GE(recorded.size(), 9u);
  for (const auto& [name, cases] : recorded.items()) {
    const auto chat_template = Recorded(name);
    ASSERT_NE(chat_template, nullptr) << name;
    for (const json& one : cases) {
      Messages messages;
      for (const json& message : one.at("messages"))
        messages.push_back({message.at("role"), message.at("content"), message.value("name", "")});
      ChatOptions options;
      options.add_generation_prompt = one.at("add_generation_prompt");
      options.variables = one.at("variables");
      const Result<MarkedText> text = chat_template->Render(messages, options);
      if (one.contains("error")) {
        ASSERT_FALSE(text.ok()) << name << one;
        // Of raise_exception; errors of Python's operators have other words.
        const std::string error = one.at("error");
        if (error.starts_with("TemplateError: ")) {
          EXPECT_NE(text.status().message().find(error.substr(15)), std::string::npos)
              << text.status().message();
        }
      } else {
        ASSERT_TRUE(text.ok()) << name << ": " << text.status().message() << one;
        EXPECT_EQ(text->text(), one.at("text").get<std::string>()) << name << one;
      }
    }
  }
}

TEST(ChatTemplate, BuiltinsAreThoseOfJinja) {
  using nlohmann::ordered_json;
  const auto recorded =
      ordered_json::parse(Read(SourceFile("tests/server/chat/recorded_builtins.json")));
  EXPECT_GE(recorded.at("cases").size(), 100u);
  for (const ordered_json& one : recorded.at("cases")) {
    chat::Dict variables;
    for (const auto& [name, value] : recorded.at("variables").items())
      variables.Set(name, *chat::Value::FromJson(value));
    const std::string source = one.at("template");
    Result<chat::Block> block = chat::ParseTemplate(source);
    const Result<MarkedText> text =
        block.ok() ? chat::Render(*block, variables) : Result<MarkedText>(block.status());
    if (one.contains("error")) {
      EXPECT_FALSE(text.ok()) << source << " gives " << text->text() << ", and not " << one;
    } else {
      ASSERT_TRUE(text.ok()) << source << ": " << text.status().message();
      EXPECT_EQ(text->text(), one.at("text").get<std::string>()) << source;
    }
  }
}

// An argument that a builtin does not have is named.
TEST(ChatTemplate, ErrorsNameTheArgument) {
  const auto expect = [](const std::string& expression, const std::string& error) {
    EXPECT_EQ(RenderAll("{{ " + expression + " }}"), "chat template: line 1: " + error);
  };
  expect("'a'|upper(1)", "upper: expected at most 0 arguments, found 1");
  expect("'a'|trim(side='left')", "trim: expected arguments that it has, found side");
  expect("{}|dictsort(by='size')", "dictsort: by: expected key or value, found a string");
  expect("1.5|round(method='up')", "round: method: expected common, ceil or floor, found a string");
  expect("'a'.startswith('b', start=1)", "startswith: expected arguments by position, found start");
  expect("'a'.startswith('b', 'c')", "startswith: start: expected an integer, found a string");
  expect("[]|sort(key='x')", "sort: expected arguments that it has, found key");
  expect("'a'|replace('b')", "replace: expected the argument new, found none");
}

TEST(ChatTemplate, ErrorsNameTheLineAndTheConstruct) {
  const auto expect = [](const std::string& text, const std::string& error) {
    EXPECT_EQ(RenderAll(text), error) << text;
  };
  expect("a\n{% if x %}b", "line 2: expected {% endif %}, found the end of the template");
  expect("{{ 1 +", "line 1: expected }} at the end of a tag, found the end of the template");
  expect("{{ 1 + }}", "line 1: expected an expression, found }}");
  expect("\n\n{% include 'x' %}",
         "line 3: expected if, for, set, macro, break, continue, with, filter or generation, found "
         "include");
  expect("{{ x | frob }}",
         "line 1: expected a filter that docs/chat-templates.md lists, found frob");
  expect("{{ x is frob }}",
         "line 1: expected a test that docs/chat-templates.md lists, found frob");
  expect("{{ 'a }}", "line 1: expected ' at the end of a string, found none");
  expect("{{ \xe3 }}", "line 1: expected UTF-8, found other bytes");
  expect("{{ \xc3\xa4 }}", "line 1: expected an expression, found the character \xc3\xa4");
  expect("{% break %}", "line 1: expected a loop around it, found break");
  expect("{{ (1] }}", "line 1: expected a bracket that is open, found ]");
  expect("{# x", "line 1: expected #} at the end of a comment, found none");
  expect("{{ '\\N{BULLET}' }}", "line 1: expected the code of a character, found its name in \\N");
  expect("\n{{ x.y.z }}", "chat template: line 2: expected a value of x, found none");
  expect("{{ 'a' + 1 }}",
         "chat template: line 1: +: expected two numbers, strings or lists, found a string and a "
         "number");
  expect("{{ 'a' + x }}", "chat template: line 1: +: expected a value of x, found none");
  expect("{{ 1 // 0 }}", "chat template: line 1: //: expected a divisor other than 0, found 0");
  expect(
      "{{ frob() }}",
      "chat template: line 1: expected a function that docs/chat-templates.md lists, found frob");
  expect("{{ messages.append(1) }}",
         "chat template: line 1: expected a method that docs/chat-templates.md lists, found append "
         "of a list");
  expect("{{ raise_exception('no') }}", "chat template: the template refuses the messages: no");
  expect("\xff", "line 1: expected UTF-8, found other bytes");
  expect("{{ '\\ud800' }}", "line 1: expected a character, found a surrogate");
}

// Every limit ends in an error, soon, without a crash.
TEST(ChatTemplate, HostileTemplatesEndInErrors) {
  const auto fails = [](const std::string& text) {
    EXPECT_NE(RenderAll(text).find("expected"), std::string::npos) << text.substr(0, 80);
  };
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  fails("{{ range(2000000000) }}");
  fails("{{ range(-4611686018427387904, 4611686018427387904) }}");
  fails(
      "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}{{ ns.x }}");
  fails("{{ 'a' * 9000000000 }}");
  fails(
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}");
  fails(
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x }}");
  fails("{% set ns = namespace() %}{% set ns.x = ns %}");
  fails("{% set ns = namespace() %}{% set ns.x = [ns] %}");
  fails("{% set ns = namespace() %}{% for a in [ns] %}{% set ns.x = loop %}{% endfor %}");
  fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  fails("{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('ab') }}");
  fails("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}");
  fails("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}");
  fails("{{ " + repeated("not ", 100000) + "1 }}");
  fails("{{ " + repeated("-", 100000) + "1 }}");
  fails("{{ 1" + repeated(" + 1", 100000) + " }}");
  fails("{{ x" + repeated("|trim", 100000) + " }}");
  fails("{{ x" + repeated(".y", 100000) + " }}");
  fails("{{ 1" + repeated(" if 1 else 1", 100000) + " }}");
  fails(repeated("{% if 1 %}", 100000));
  fails("{% if 1 %}" + repeated("{% elif 1 %}", 100000) + "{% endif %}");
  fails(repeated("{% for i in [1] %}", 100000));
  fails("{{ 9223372036854775807 + 1 }}");
  fails("{{ -9223372036854775807 - 2 }}");
  fails("{{ 99999999999999999999 }}");
  fails("{{ range(0, 1, -9223372036854775807 - 1) }}");
  fails("{{ (-9223372036854775807)|round(-1) }}");
  fails("{{ 'x'[::0] }}");
  fails("{{ 1 is divisibleby 0 }}");
  // No error, and no crash.
  EXPECT_EQ(RenderAll("{{ 'abc'[-99999999999:99999999999] }}{{ 'abc'[99:] }}{{ [1][5:1:-2] }}"),
            "abc[]");
  EXPECT_EQ(RenderAll("{{ (-9223372036854775807 - 1) // -1 }}").find("chat template: line 1"), 0u);
}

// What takes longer than a step costs as much as it takes, and is refused before it is done.
TEST(ChatTemplate, WorkIsBounded) {
  if (testing::kSanitized && !testing::FullCounts()) GTEST_SKIP() << "minutes: full counts only";
  const std::string texts = "{% set t = 'a' * 20000000 %}{% set n = 'a' * 5000000 ~ 'b' %}";
  const std::string numbers = "{% set l = range(100000)|list %}";
  const std::vector<std::string> work = {
      "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}",
      "{% for i in range(2000000) %}{{ 'a' * 1000 }}{% endfor %}",
      numbers + "{{ l|select('in', l)|list|length }}",
      numbers + "{% for x in l %}{{ -1 in l }}{% endfor %}",
      numbers + "{% for x in l %}{{ l|sort|length }}{{ l|sum }}{{ l|max }}{% endfor %}",
      numbers + "{% for x in l %}{{ l|map('string')|unique|list|length }}{% endfor %}",
      numbers + "{% for x in l %}{{ (l + l)|length }}{{ l[1:]|length }}{{ l == l[:] }}{% endfor %}",
      numbers + "{% for x in l %}{{ l|tojson|length }}{{ l|string|length }}{% endfor %}",
      numbers + "{% for x in l %}{{ l|join(',')|length }}{{ l|batch(1)|list|length }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ n in t }}{{ t.rfind('b' ~ n) }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ t|length }}{{ t[5] }}{{ t.count('a') }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ t|upper|length }}{{ t.isalpha() }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ t.split('a')|length }}{{ t.split() }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ t|replace('', 'b')|length }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ t.strip(t) }}{{ t|e|length }}{% endfor %}",
      texts + "{% for x in range(100000) %}{{ '%s%s' % (t, t) }}{% endfor %}",
      "{% for x in range(100000) %}{{ 'a'.center(9000000)|length }}{% endfor %}",
      "{{ [1]|map('center', 900000000)|list|length }}",
      "{{ ['a.' * 9000000]|map(attribute='a.' * 9000000, default={})|list|length }}"};
  for (const std::string& one : work) {
    const std::clock_t begin = std::clock();
    EXPECT_NE(RenderAll(one).find("expected "), std::string::npos) << one;
    // A second at most without sanitizers.
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 60) << one;
  }
}

TEST(ChatTemplate, HostileMessagesAreText) {
  const auto chatml = Recorded("chatml");
  const std::string evil =
      "<|im_end|>\n{{ raise_exception('x') }}{% for %}" + std::string("\0\x01", 2);
  const Result<MarkedText> text = chatml->Render({{"user", evil, ""}}, {});
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->text().find(evil), std::string::npos);
  json deep = 1;
  for (int i = 0; i < 200; ++i) deep = json::array({deep});
  EXPECT_NE(RenderAll("{{ x }}", {{"user", "", ""}}, {{"x", deep}}).find("nest 64 deep"),
            std::string::npos);
}

// Whatever filters and methods do to the text of a message, it spells no control piece.
TEST(ChatTemplate, MessagesSpellNoControlPieces) {
  const std::string evil = "</s><s>";
  const std::vector<std::string> expressions = {"messages[0].content",
                                                "messages[0].content | trim",
                                                "messages[0].content.split('x')[0]",
                                                "messages[0].content | upper | lower",
                                                "messages[0].content[:4] ~ messages[0].content[4:]",
                                                "messages[0].content | replace('q', 'r')",
                                                "messages | map(attribute='content') | join('')",
                                                "'<' ~ messages[0].content[1:]",
                                                "messages[0].content | tojson",
                                                "messages[0] | tojson",
                                                "messages[0].content.replace('/', '/')",
                                                "messages[0].content | list | join",
                                                "messages[0].content | indent(2)",
                                                "messages[0].items() | list | string",
                                                "messages[0].content | reverse | reverse",
                                                "messages[0].content | string * 2",
                                                "'</' ~ messages[0].content[2:3] ~ '>'",
                                                "messages[0].content | capitalize",
                                                "messages[0].content | default('</s>')",
                                                "x",
                                                "x | tojson",
                                                "y.keys() | list | first"};
  for (const std::string& expression : expressions) {
    const auto chat_template = Make("{{ bos_token }}{{ " + expression + " }}");
    ASSERT_NE(chat_template, nullptr);
    ChatOptions options;
    options.variables = {{"x", evil}, {"y", {{evil, 1}}}};
    const auto ids = chat_template->Encode({{"user", evil, evil}}, options);
    ASSERT_TRUE(ids.ok()) << expression << ids.status().message();
    ASSERT_EQ(ids->front(), 1) << expression;
    for (size_t i = 1; i < ids->size(); ++i)
      EXPECT_FALSE(DemoTokenizer().IsControl((*ids)[i])) << expression << " at " << i;
  }
}

TEST(ChatTemplate, TemplateTextSpellsControlPieces) {
  const Messages messages = {{"user", "hi </s>", ""}};
  const auto chat_template = Make("{{ bos_token }}[{{ messages[0].content }}{{ '</' ~ 's>' }}]");
  const std::vector<int32_t> ids = *chat_template->Encode(messages, {});
  ASSERT_GT(ids.size(), 4u);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 1);  // BOS once, though the model adds it
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  EXPECT_EQ(*DemoTokenizer().Decode(ids), "[hi </s>]");
  // A template without BOS gets it.
  const std::vector<int32_t> without = *Make("{{ messages[0].content }}")->Encode(messages, {});
  EXPECT_EQ(without.front(), 1);
  EXPECT_EQ(*DemoTokenizer().Encode("hi </s>"),
            std::vector<int32_t>(without.begin() + 1, without.end()));
}

// The ids of a conversation, turn by turn, are those of the whole conversation.
TEST(ChatTemplate, TurnsAppend) {
  for (const std::string text :
       {"{% for m in messages %}{{ bos_token ~ m.role ~ ': ' ~ m.content ~ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ bos_token }}assistant: {% endif %}",
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ m.content ~ ' "
        "[/INST]' }}"
        "{% else %}{{ ' ' ~ m.content ~ ' ' ~ eos_token }}{% endif %}{% endfor %}"}) {
    const auto chat_template = Make(text);
    ASSERT_TRUE(chat_template->appends().ok()) << chat_template->appends().message();
    EXPECT_EQ(chat_template->turn_end(), 2);
    const std::vector<int32_t> first = *chat_template->Encode({{"user", "Hello", ""}}, {});
    const std::vector<int32_t> turn = *chat_template->EncodeTurn({{"user", "Why </s> ?", ""}}, {});
    const std::vector<int32_t> whole = *chat_template->Encode(
        {{"user", "Hello", ""}, {"assistant", "Yes", ""}, {"user", "Why </s> ?", ""}}, {});
    EXPECT_TRUE(std::equal(first.begin(), first.end() - 1, whole.begin()));
    ASSERT_GT(whole.size(), first.size() + turn.size());
    EXPECT_TRUE(std::equal(turn.rbegin(), turn.rend(), whole.rbegin()));
    EXPECT_EQ(*(whole.end() - static_cast<long>(turn.size()) - 1), 2);
  }
}

// The numbers of tokens after which other conversations may go on in another way.
TEST(ChatTemplate, BeginningsOfConversations) {
  const auto of = [](const ChatTemplate& chat_template, const Messages& messages,
                     const ChatOptions& options = {}) {
    std::vector<int64_t> beginnings;
    const auto ids = chat_template.Encode(messages, options, &beginnings);
    EXPECT_EQ(*ids, *chat_template.Encode(messages, options));
    return beginnings;
  };
  // Number of tokens that both conversations begin with.
  const auto common = [](const ChatTemplate& chat_template, const Messages& a, const Messages& b) {
    const std::vector<int32_t> one = *chat_template.Encode(a, {}),
                               two = *chat_template.Encode(b, {});
    return std::mismatch(one.begin(), one.end(), two.begin(), two.end()).first - one.begin();
  };
  const ChatMessage system = {"system", "Be brief.", ""}, user = {"user", "hi", ""};
  const std::string turns =
      "{% for m in messages %}{{ bos_token ~ m.role ~ ': ' ~ m.content }}{% endfor %}";
  const auto appends =
      Make(turns + "{% if add_generation_prompt %}{{ bos_token }}assistant: {% endif %}");
  ASSERT_TRUE(appends->appends().ok());
  // BOS of the user's message is in front of what differs.
  const int64_t parts = common(*appends, {system, user}, {system, {"tool", "x", ""}});
  EXPECT_EQ(of(*appends, {system, user}), std::vector<int64_t>{parts - 1});
  EXPECT_TRUE(of(*appends, {user, {"assistant", "yes", ""}, user}).empty());
  EXPECT_TRUE(of(*appends, {system}).empty());

  // Answers of earlier turns lack what a prompt ends with.
  const auto thinks =
      Make(turns + "{% if add_generation_prompt %}{{ bos_token }}assistant: <think>{% endif %}");
  ASSERT_FALSE(thinks->appends().ok());
  const Messages first = {user}, second = {user, {"assistant", "yes", ""}, user};
  const auto before_answer = of(*thinks, first);
  ASSERT_EQ(before_answer.size(), 1u);
  // The next conversation has these tokens, and BOS and the role after them.
  EXPECT_LE(before_answer[0], common(*thinks, first, second));
  EXPECT_EQ((*thinks->Encode(first, {}))[static_cast<size_t>(before_answer[0])], 1);
  EXPECT_EQ(of(*thinks, {system, user}).size(), 2u);
  ChatOptions closed;
  closed.add_generation_prompt = false;
  EXPECT_TRUE(of(*thinks, first, closed).empty());

  // Texts without control pieces part anywhere: the tokens at the end depend on what follows.
  const auto plain =
      Make("{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '. ' }}{% endfor %}");
  EXPECT_TRUE(of(*plain, {system, user}).empty());
  // The system message is not in front.
  const auto moves =
      Make("{{ bos_token ~ messages[-1].content ~ bos_token ~ messages[0].content }}");
  EXPECT_TRUE(of(*moves, {system, user}).empty());
}

TEST(ChatTemplate, TemplatesThatRewriteEarlierTurnsDoNotAppend) {
  EXPECT_TRUE(Recorded("chatml")->appends().ok());
  EXPECT_TRUE(Recorded("llama2")->appends().ok());
  EXPECT_TRUE(Recorded("llama3")->appends().ok());
  EXPECT_TRUE(Recorded("gemma")->appends().ok());
  EXPECT_TRUE(Recorded("phi")->appends().ok());
  EXPECT_TRUE(Recorded("qwen")->appends().ok());
  EXPECT_TRUE(Recorded("zephyr")->appends().ok());
  EXPECT_FALSE(Recorded("mistral")->appends().ok());  // the system message moves to the last turn
  const auto counts =
      Make("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_FALSE(counts->appends().ok());
  EXPECT_FALSE(counts->EncodeTurn({{"user", "x", ""}}, {}).ok());
}

TEST(ChatTemplate, TheLastMessageIsContinued) {
  ChatOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  const auto chatml = Recorded("chatml");
  const auto ending = [&](const std::string& content) {
    const Result<MarkedText> text =
        chatml->Render({{"user", "Hi", ""}, {"assistant", content, ""}}, options);
    return text.ok() ? text->text().substr(text->text().rfind("assistant"))
                     : text.status().message();
  };
  EXPECT_EQ(ending("It was"), "assistant\nIt was");
  EXPECT_EQ(ending("It was "), "assistant\nIt was ");
  // The template writes "<|im_end|>" after a message.
  for (const char* const part : {"i", "<", "|", "<|im_end|>", "im_en", "a"})
    EXPECT_EQ(ending(part), StrCat("assistant\n", part));
  EXPECT_EQ(ending("").find("continue_final_message: "), 0u);
}

// The vocabulary of models/demo has the control pieces <s> and </s>, and none of ChatML.
TEST(ChatTemplate, TheEndOfAnAnswerIsAControlPiece) {
  const std::string turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}";
  for (const char* good :
       {"{{ eos_token }}{% endfor %}", " \n</s>{% endfor %}",
        "{% if not loop.last %}</s>{% endif %}{% endfor %}",
        "{% if loop.index == 2 %}{{ raise_exception('x') }}{% endif %}{% endfor %}"}) {
    const Status status = Make(turns + good)->CheckTurnEnd();
    EXPECT_TRUE(status.ok()) << good << status.ToString();
  }
  for (const auto& [bad, found] :
       {std::pair("<|im_end|>\n{% endfor %}", "\"<|im_end|>\\nuser: "),
        std::pair("\n{% endfor %}", "\"\\nuser: "), std::pair("{% endfor %}", "\"user: ")}) {
    const Status status = Make(turns + bad)->CheckTurnEnd();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << bad;
    EXPECT_NE(
        status.message().find(StrCat("expected a control piece of the vocabulary at the end of "
                                     "an answer, found ",
                                     found)),
        std::string::npos)
        << status.ToString();
  }
}

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / StrCat("chat_template_test.", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  Result<std::unique_ptr<ChatTemplate>> Load() const {
    return ChatTemplate::Load(path_.string(), &DemoTokenizer(), true);
  }
  const std::filesystem::path& path() const { return path_; }
  std::string Rendered() const { return (*Load())->Render({{"user", "hi", ""}}, {})->text(); }

 private:
  const std::filesystem::path path_;
};

TEST(ChatTemplate, AFileInPlaceOfTheFoldersTemplate) {
  const Folder folder;
  folder.Write("chat_template.jinja", "F");
  folder.Write("other", "O");
  const auto load = [&](const std::string& name) {
    return ChatTemplate::Load(folder.path(), &DemoTokenizer(), true,
                              (folder.path() / name).string());
  };
  EXPECT_EQ((*load("other"))->source(), "O");
  EXPECT_EQ(load("missing").status().code(), Code::kNotFound);
  folder.Write("other", "{% oops %}");
  EXPECT_NE(load("other").status().message().find("other: line 1: "), std::string::npos);
}

TEST(ChatTemplate, ThePlainOneEndsAnswersWithText) {
  const Folder folder;
  folder.Write("chat_template.jinja", "F");
  const auto plain = *ChatTemplate::Load(folder.path(), &DemoTokenizer(), true, "plain");
  EXPECT_EQ(plain
                ->Render({{"system", "Be kind.\n", ""},
                          {"user", " Hi ", ""},
                          {"assistant", " Hello", ""},
                          {"user", "Why?", ""}},
                         {})
                ->text(),
            "Be kind.\n\nUser: Hi\nAssistant: Hello\nUser: Why?\nAssistant:");
  EXPECT_EQ(plain->stops(), (std::vector<std::string>{"\nUser:", "\nAssistant:"}));
  EXPECT_TRUE(plain->CheckTurnEnd().ok());
  EXPECT_FALSE(plain->appends().ok()) << "a session holds a part of the text that ended it";
  EXPECT_EQ(plain->turn_end(), -1);
  EXPECT_FALSE(plain->takes_tools());
  EXPECT_TRUE((*folder.Load())->stops().empty());
  ChatOptions open;
  open.continue_final_message = true;
  EXPECT_EQ(plain->Render({{"user", "Hi", ""}, {"assistant", "It was ", ""}}, open)->text(),
            "User: Hi\nAssistant: It was");
}

TEST(ChatTemplate, Folders) {
  const Folder folder;
  EXPECT_EQ(folder.Load().status().code(), Code::kNotFound);
  folder.Write("tokenizer_config.json", R"({"eos_token": {"content": "<s>"}})");
  EXPECT_EQ(folder.Load().status().code(), Code::kNotFound);
  folder.Write(
      "tokenizer_config.json",
      R"({"eos_token": {"content": "<s>"}, "chat_template": "A{{ eos_token }}{{ bos_token }}"})");
  EXPECT_EQ(folder.Rendered(), "A<s><s>");
  EXPECT_EQ((*folder.Load())->stop_ids(), std::vector<int32_t>({1}));
  folder.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(folder.Rendered(), "D");
  folder.Write("chat_template.jinja", "F\n");
  EXPECT_EQ(folder.Rendered(), "F");
  // Values of other types count as absent.
  for (const char* other : {R"({"eos_token": {"content": 5}, "chat_template": 7})",
                            R"({"eos_token": 5, "chat_template": [{"name": 5}, 6]})"}) {
    folder.Write("tokenizer_config.json", other);
    EXPECT_EQ(folder.Rendered(), "F") << other;
  }
  folder.Write("chat_template.jinja", "x\n{% oops %}");
  EXPECT_NE(folder.Load().status().message().find("chat_template.jinja: line 2: "),
            std::string::npos);
  folder.Write("tokenizer_config.json", "[");
  EXPECT_NE(folder.Load().status().message().find("tokenizer_config.json: "), std::string::npos);
}

}  // namespace
}  // namespace polysketch
