// Structured output of the real server, on every door.
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"
#include "tests/testing/slow_expression.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;

constexpr char kPrompt[] = "It was late in the afternoon";
constexpr char kSchema[] = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 8},
    "kind": {"enum": ["cat", "dog"]},
    "age": {"type": "integer", "minimum": 1, "maximum": 99}
  },
  "required": ["name", "kind", "age"],
  "additionalProperties": false
})";

v1::CompleteRequest Request(uint64_t seed) {
  v1::CompleteRequest request;
  request.mutable_prompt()->set_text(kPrompt);
  request.set_max_tokens(200);
  request.mutable_sampling()->set_seed(seed);
  return request;
}
v1::CompleteRequest SchemaRequest(uint64_t seed) {
  v1::CompleteRequest request = Request(seed);
  request.mutable_structured_output()->set_json_schema(kSchema);
  request.mutable_structured_output()->set_compact_json(true);
  return request;
}

void ExpectValid(const std::string& text) {
  const json value = json::parse(text, nullptr, false);
  ASSERT_TRUE(value.is_object()) << text;
  EXPECT_EQ(value.size(), 3u) << text;
  EXPECT_TRUE(value["name"].is_string()) << text;
  EXPECT_TRUE(value["kind"] == "cat" || value["kind"] == "dog") << text;
  EXPECT_TRUE(value["age"].is_number_integer() && value["age"] >= 1 && value["age"] <= 99) << text;
}

// What a process is (proc_pid_stat(5)).
struct ProcessStat {
  std::string name;
  char state = 'X';
  pid_t parent = 0;
  int threads = 0;
  // The memory and the files of a process remain until its last thread has ended: its first may
  // be a zombie before.
  bool Runs() const { return state != 'X' && (state != 'Z' || threads > 1); }
};

ProcessStat StatOf(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t open = text.find('('), close = text.rfind(')');
  if (close == std::string::npos) return {};
  ProcessStat stat;
  stat.name = text.substr(open + 1, close - open - 1);
  std::istringstream rest(text.substr(close + 1));
  rest >> stat.state >> stat.parent;
  std::string skipped;
  for (int field = 5; field < 20; ++field) rest >> skipped;
  rest >> stat.threads;
  return stat;
}

bool AnyRuns(const std::vector<pid_t>& processes) {
  return std::ranges::any_of(processes, [](pid_t process) { return StatOf(process).Runs(); });
}

// The processes of the server's grammars: children of the server, and their children.
std::vector<pid_t> GrammarProcesses(pid_t server) {
  std::vector<pid_t> ours;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    const ProcessStat stat = StatOf(std::stoi(name));
    if (stat.name != "polysketch-gram" || !stat.Runs()) continue;
    if (stat.parent == server || StatOf(stat.parent).parent == server)
      ours.push_back(std::stoi(name));
  }
  return ours;
}

class StructuredOutput : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<Server>(ServerOptions{.flags = {"--http-listen", "127.0.0.1:0"}});
  }
  static void TearDownTestSuite() {
    const std::vector<pid_t> processes = GrammarProcesses(server_->process().pid());
    EXPECT_FALSE(processes.empty());
    server_->process().Signal(SIGTERM);
    EXPECT_EQ(server_->process().Wait(), 0);
    EXPECT_TRUE(WaitUntil([&] { return !AnyRuns(processes); }));
    server_.reset();
  }
  static json Post(const std::string& path, const json& body, int status = 200) {
    const HttpAnswer answer = Http(server_->http_address(), path, body.dump());
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body);
  }
  static std::string Text(const json& extra) {
    json body = {{"prompt", kPrompt}, {"max_tokens", 200}, {"seed", 5}};
    body.update(extra);
    return Post("/v1/completions", body)["choices"][0]["text"];
  }
  // Starts calls whose grammars, each another, are slow to compile (SlowExpression). Returns when
  // all have arrived.
  static std::vector<std::unique_ptr<CompleteStream>> StartCompilations(
      Client& client, int count, int repetitions, const CallOptions& options = {}) {
    const std::string slow = testing::SlowExpression(repetitions);
    std::vector<std::unique_ptr<CompleteStream>> calls;
    for (int i = 0; i < count; ++i) {
      v1::CompleteRequest request = Request(1);
      request.mutable_structured_output()->set_regex(slow + std::to_string(i));
      calls.push_back(client.StartComplete(request, options));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return calls;
  }

  static inline std::unique_ptr<Server> server_;
};

TEST_F(StructuredOutput, EveryCompletionIsValid) {
  Client client(server_->address());
  std::vector<std::string> alone;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Completion completion = client.Complete(SchemaRequest(seed));
    ASSERT_TRUE(completion.status.ok()) << completion.status.ToString();
    EXPECT_EQ(completion.finish.reason(), v1::FINISH_REASON_STOP);
    ExpectValid(completion.text);
    alone.push_back(completion.text);
  }
  EXPECT_GT(std::set<std::string>(alone.begin(), alone.end()).size(), 10u);
  // The same beside other requests, with drafts.
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    threads.emplace_back([&, seed] {
      v1::CompleteRequest request = SchemaRequest(seed);
      request.set_draft_tokens(static_cast<int32_t>(seed % 5));
      const Completion beside = client.Complete(request);
      EXPECT_TRUE(beside.status.ok()) << beside.status.ToString();
      EXPECT_EQ(beside.text, alone[seed - 1]) << seed;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// White space is bounded without compact_json too.
TEST_F(StructuredOutput, CompletionsOfASchemaEnd) {
  const std::string model = (testing::SourceDir() / "models/novels").string();
  Server novels(ServerOptions{.model = model});
  Client client(novels.address());
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    v1::CompleteRequest request = SchemaRequest(seed);
    request.mutable_structured_output()->set_compact_json(false);
    request.set_max_tokens(600);
    const Completion completion = client.Complete(request);
    ASSERT_TRUE(completion.status.ok()) << completion.status.ToString();
    EXPECT_EQ(completion.finish.reason(), v1::FINISH_REASON_STOP) << completion.text;
    ExpectValid(completion.text);
  }
}

// Faults that clients have met.
TEST_F(StructuredOutput, TextsAreThoseOfTheGrammar) {
  EXPECT_EQ(Text({{"guided_choice", {"Dear Ann,\nBest"}}}), "Dear Ann,\nBest");
  EXPECT_EQ(Text({{"guided_choice",
                   {"\x01"
                    "f\x7f"
                    "0"}}}),
            "\x01"
            "f\x7f"
            "0");
  EXPECT_EQ(Text({{"guided_regex", "\\x41b"}}), "Ab");
  EXPECT_EQ(Text({{"guided_regex", "\\ud83d\\ude00"}}), "\xf0\x9f\x98\x80");
  const auto value = [](const json& schema) {
    const std::string text = Text({{"guided_json", schema}});
    const json parsed = json::parse(text, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << text;
    return parsed;
  };
  const std::string quoted = value({{"type", "string"}, {"pattern", "^\"[a-c]\"$"}});
  EXPECT_TRUE(std::regex_match(quoted, std::regex("\"[a-c]\""))) << quoted;
  EXPECT_EQ(value({{"type", "integer"}, {"enum", {1, 20}}, {"maximum", 10}}), 1);
  EXPECT_EQ(value({{"enum", {{{"a", {1, {{"b", 2}}}}}}}}), (json{{"a", {1, {{"b", 2}}}}}));
  const json either = value({{"type", "object"},
                             {"anyOf", {{{"required", {"a"}}}, {{"required", {"b"}}}}},
                             {"properties", {{"a", {{"const", 1}}}, {"b", {{"const", 2}}}}}});
  EXPECT_TRUE(either.contains("a") || either.contains("b")) << either;
  EXPECT_EQ(value(json::parse(R"({
    "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "$defs": {
      "Cat": {"title": "Cat", "type": "object", "required": ["kind", "lives"], "properties": {
        "kind": {"const": "cat", "title": "Kind", "type": "string"}, "lives": {"const": 9}}},
      "Dog": {"title": "Dog", "type": "object", "required": ["kind", "tail"], "properties": {
        "kind": {"const": "dog", "title": "Kind", "type": "string"}, "tail": {"const": true}}}}
  })"))
                .size(),
            2u);
  const HttpAnswer big = Http(server_->http_address(), "/v1/completions",
                              R"({"prompt": "a", "max_tokens": 60, "seed": 1, "guided_json": )"
                              R"({"const": 12345678901234567890123}})");
  EXPECT_EQ(json::parse(big.body)["choices"][0]["text"], "12345678901234567890123") << big.body;
  const std::string compact = Text(
      {{"structured_outputs", {{"disable_any_whitespace", true}}},
       {"response_format",
        {{"type", "json_schema"}, {"json_schema", {{"schema", {{"const", {{"a", {1, 2}}}}}}}}}}});
  EXPECT_EQ(compact, R"({"a": [1, 2]})");
}

TEST_F(StructuredOutput, KindsOfGrammar) {
  Client client(server_->address());
  const auto text = [&](auto set) {
    v1::CompleteRequest request = Request(3);
    set(request.mutable_structured_output());
    const Completion completion = client.Complete(request);
    EXPECT_TRUE(completion.status.ok()) << completion.status.ToString();
    return completion.text;
  };
  const std::string date = text([](auto* out) { out->set_regex("[0-9]{4}-[01][0-9]"); });
  EXPECT_TRUE(std::regex_match(date, std::regex("[0-9]{4}-[01][0-9]"))) << date;
  const std::string choice = text([](auto* out) {
    for (const char* option : {"\"yes\"", "no\n", "tab\t\\", "\xc3\xa9t\xc3\xa9"})
      out->mutable_choice()->add_texts(option);
  });
  EXPECT_TRUE(
      (std::set<std::string>{"\"yes\"", "no\n", "tab\t\\", "\xc3\xa9t\xc3\xa9"}.contains(choice)))
      << choice;
  const std::string sum = text([](auto* out) {
    out->set_ebnf("root ::= term (\" + \" term){1,3}\nterm ::= [0-9] | \"(\" term \")\"");
  });
  EXPECT_TRUE(std::regex_match(sum, std::regex("[0-9 +()]+"))) << sum;
}

TEST_F(StructuredOutput, DoorsOfHttp) {
  const json schema = json::parse(kSchema);
  const json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "pet"}, {"schema", schema}}}};
  const HttpAnswer answer = Http(
      server_->http_address(), "/v1/completions",
      R"({"prompt": "It was late", "max_tokens": 200, "seed": 5, "structured_outputs": {"json": )" +
          std::string(kSchema) + R"(, "disable_any_whitespace": true}})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const std::string text = json::parse(answer.body)["choices"][0]["text"];
  ExpectValid(text);
  // Properties come in the order of the schema, which is not that of the alphabet.
  EXPECT_LT(text.find("name"), text.find("kind"));
  EXPECT_LT(text.find("kind"), text.find("age"));
  EXPECT_EQ(Text({{"guided_choice", {"one"}}}), "one");
  EXPECT_EQ(Text({{"guided_regex", "ab{3}"}}), "abbb");
  EXPECT_EQ(Text({{"guided_grammar", "root ::= \"x\""}}), "x");
  EXPECT_EQ(Text({{"guided_json", R"({"const": 7})"}}), "7");
  EXPECT_EQ(Text({{"guided_json", {{"const", 7}}}}), "7");
  EXPECT_EQ(Text({{"structured_outputs", {{"choice", {"two"}}}}}), "two");
  const json body = {{"prompt", kPrompt}, {"max_tokens", 8}};
  const auto error = [&](const json& extra) {
    json request = body;
    request.update(extra);
    return Post("/v1/completions", request, 400)["error"];
  };
  EXPECT_EQ(error({{"response_format", {{"type", "xml"}}}})["param"], "response_format.type");
  EXPECT_EQ(error({{"response_format", {{"type", "json_schema"}}}})["param"],
            "response_format.json_schema");
  EXPECT_EQ(error({{"guided_regex", "a"}, {"response_format", format}})["param"],
            "response_format");
  EXPECT_EQ(error({{"guided_regex", "(a"}})["param"], "guided_regex");
  EXPECT_EQ(error({{"guided_regex", "a"}, {"ignore_eos", true}})["param"], "ignore_eos");
}

TEST_F(StructuredOutput, BadGrammarsAreRefused) {
  Client client(server_->address());
  const auto error = [&](auto set) {
    v1::CompleteRequest request = Request(3);
    set(request.mutable_structured_output());
    const Status status = client.Complete(request).status;
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_NE(error([](auto*) {}).find("expected json_schema"), std::string::npos);
  EXPECT_NE(error([](auto* out) { out->set_json_object(false); }).find("expected true"),
            std::string::npos);
  EXPECT_NE(error([](auto* out) {
              out->set_json_schema(R"({"items": {"type": "array", "uniqueItems": true}})");
            }).find("structured_output: /items/uniqueItems: "),
            std::string::npos);
  EXPECT_NE(error([](auto* out) { out->set_json_schema("{"); }).find("structured_output: "),
            std::string::npos);
  EXPECT_NE(error([](auto* out) { out->mutable_choice(); }).find("found 0"), std::string::npos);
  EXPECT_NE(error([](auto* out) { out->set_regex(std::string(200000, 'a')); }).find("200000"),
            std::string::npos);
}

// Grammars that take minutes or gigabytes in xgrammar, beside a client that reads a stream.
TEST_F(StructuredOutput, HostileGrammarsHarmNobodyElse) {
  v1::CompleteRequest honest = Greedy(kPrompt, 300);
  honest.set_ignore_eos(true);
  Client neighbour(server_->address());
  const std::vector<int32_t> want = neighbour.Complete(honest).tokens;
  std::string slow = "root ::= r0";
  for (int i = 0; i < 3000; ++i) {
    slow += "\nr" + std::to_string(i) + " ::= \"a\" r" + std::to_string((i * 7 + 1) % 3000) +
            " | \"b\" r" + std::to_string((i * 5 + 3) % 3000) + " | \"c\"";
  }
  const std::string repeats = "((a|b){1,1000}){1,1000}";
  std::vector<std::thread> attackers;
  for (int i = 0; i < 2; ++i) {
    attackers.emplace_back([&, i] {
      Client client(server_->address());
      v1::CompleteRequest request = Request(static_cast<uint64_t>(i));
      v1::StructuredOutput* output = request.mutable_structured_output();
      i == 0 ? output->set_ebnf(slow) : output->set_regex(repeats);
      request.set_max_tokens(500);
      const Status status = client.Complete(request).status;
      // UNAVAILABLE: a machine that is busy with other tests does not compile within a minute.
      EXPECT_TRUE(status.ok() || status.code() == Code::kInvalidArgument ||
                  status.code() == Code::kUnavailable)
          << status.ToString();
    });
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(neighbour.Complete(honest).tokens, want);
  const Completion constrained = neighbour.Complete(SchemaRequest(1));
  EXPECT_TRUE(constrained.status.ok()) << constrained.status.ToString();
  for (std::thread& thread : attackers) thread.join();
  EXPECT_TRUE(server_->BecomesIdle());
}

// 120 compilations of seconds each, of calls that have ended, before one of a call that waits.
TEST_F(StructuredOutput, CancelledCallsCompileNothing) {
  Client client(server_->address());
  StartCompilations(client, 120, 130).clear();
  v1::CompleteRequest request = Request(1);
  request.mutable_structured_output()->set_regex("one more");
  const Completion completion = client.Complete(request, {.timeout = std::chrono::seconds(60)});
  EXPECT_EQ(completion.text, "one more") << completion.status.ToString();
}

// Eight compilations of ten seconds of processor time each.
TEST_F(StructuredOutput, AClientsCompilationsLeaveRoomForAnothers) {
  Client client(server_->address());
  const auto calls = StartCompilations(client, 8, 300, {.metadata = {{"x-tenant-id", "first"}}});
  v1::CompleteRequest request = Request(1);
  request.mutable_structured_output()->set_regex("of the other");
  const auto start = std::chrono::steady_clock::now();
  const Completion other = client.Complete(request, {.metadata = {{"x-tenant-id", "second"}}});
  EXPECT_EQ(other.text, "of the other") << other.status.ToString();
  // Less than the time of one compilation of the first client.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST_F(StructuredOutput, ProcessesThatDieAreStartedAgain) {
  Client client(server_->address());
  const std::string text = client.Complete(SchemaRequest(1)).text;
  const std::vector<pid_t> processes = GrammarProcesses(server_->process().pid());
  ASSERT_GE(processes.size(), 2U);  // the host and a worker
  for (const pid_t process : processes) kill(process, SIGKILL);
  // A process that has a signal still runs for a moment, longer on a busy machine.
  EXPECT_TRUE(WaitUntil([&] { return !AnyRuns(processes); }));
  const Completion after = client.Complete(SchemaRequest(1));
  EXPECT_EQ(after.text, text) << after.status.ToString();
}

}  // namespace
}  // namespace polysketch::e2e
