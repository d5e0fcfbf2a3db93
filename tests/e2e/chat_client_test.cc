// `polysketch chat`, as a script runs it, against the real server.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

constexpr char kTemplate[] =
    "{%- for message in messages %}"
    "{{- bos_token + message.role + ': ' + message.content + eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}";

class ChatClient : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = NewTemporaryFolder();
    std::filesystem::copy(DemoModel(), folder_ / "demo");
    std::ofstream(folder_ / "demo" / "chat_template.jinja") << kTemplate;
    server_ = std::make_unique<Server>(
        ServerOptions{.model = folder_ / "demo", .flags = {"--http-listen", "127.0.0.1:0"}});
  }
  static void TearDownTestSuite() {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  static ProcessOptions Command(const std::string& server, const Strings& options,
                                const std::string& input) {
    ProcessOptions command{.arguments = {Binary("polysketch"), "chat", "--server", server},
                           .environment = {},
                           .standard_input = input};
    command.arguments.insert(command.arguments.end(), options.begin(), options.end());
    return command;
  }
  static ProcessResult Chat(const Strings& options, const std::string& input) {
    return RunProcess(Command(server_->http_address(), options, input));
  }
  static json Respond(json body) {
    body["temperature"] = 0;
    body["max_output_tokens"] = 9;
    const HttpAnswer answer = Http(server_->http_address(), "/v1/responses", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  static std::string Text(const json& response) {
    return response.at("output").at(0).at("content").at(0).at("text");
  }
  static inline std::filesystem::path folder_;
  static inline std::unique_ptr<Server> server_;
};

TEST_F(ChatClient, LinesAreTurnsOfOneConversation) {
  const json first = Respond({{"input", "It was late"}, {"instructions", "Be kind"}});
  const json second = Respond({{"input", "Why?"}, {"previous_response_id", first.at("id")}});
  const double before = server_->Metric("polysketch_sessions");

  const Strings options = {"--temperature", "0", "--max-tokens", "9", "--system", "Be kind"};
  const ProcessResult chat =
      Chat(options, "It was late\r\n\n \t\nWhy?");  // empty lines are no turns
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_error;
  EXPECT_EQ(chat.standard_output, Text(first) + "\n" + Text(second) + "\n");
  EXPECT_EQ(chat.standard_error, "");
  EXPECT_EQ(server_->Metric("polysketch_sessions"), before) << "the conversation is deleted";

  EXPECT_EQ(Chat(options, "").standard_output, "");
  EXPECT_EQ(Chat(options, "").exit_status, 0);
}

TEST_F(ChatClient, AConversationThatTheServerHasLostIsSentAgain) {
  const std::filesystem::path lost = folder_ / "lost";
  const std::string script =
      StrCat("{ echo One; while [ ! -e ", lost.string(), " ]; do sleep 0.05; done; echo Two; } | ",
             Binary("polysketch"), " chat --server ", server_->http_address(),
             " --temperature 0 --max-tokens 9");
  Process chat({.arguments = {"/bin/sh", "-c", script}});
  const std::string first = Text(Respond({{"input", "One"}, {"store", false}}));
  ASSERT_TRUE(WaitUntil([&] { return chat.StandardOutput() == first + "\n"; }))
      << chat.StandardError();

  const Strings session = {Binary("polysketch"), "--server", server_->address(), "session"};
  const auto run = [&](const Strings& arguments) {
    Strings all = session;
    all.insert(all.end(), arguments.begin(), arguments.end());
    return RunProcess({.arguments = all});
  };
  const json list = json::parse(run({"list", "--json"}).standard_output);
  ASSERT_GT(list.at("sessions").size(), 0u);
  for (const json& one : list.at("sessions"))
    EXPECT_EQ(run({"delete", one.at("session").get<std::string>()}).exit_status, 0);
  std::ofstream(lost) << "";
  EXPECT_EQ(chat.Wait(), 0) << chat.StandardError();
  const json whole = {{{"role", "user"}, {"content", "One"}},
                      {{"role", "assistant"}, {"content", first}},
                      {{"role", "user"}, {"content", "Two"}}};
  const std::string second = Text(Respond({{"input", whole}, {"store", false}}));
  EXPECT_EQ(chat.StandardOutput(), first + "\n" + second + "\n");
}

TEST_F(ChatClient, AnInterruptStopsTheAnswerAndNotTheProgram) {
  const double before = server_->Metric("polysketch_sessions");
  Process chat(Command(server_->http_address(), {"--max-tokens", "1000000"}, "One\nTwo\n"));
  for (int answers = 1; answers <= 2; ++answers) {
    ASSERT_TRUE(server_->ComesToRun(1)) << chat.StandardError();
    const size_t printed = chat.StandardOutput().size();
    ASSERT_TRUE(WaitUntil([&] { return chat.StandardOutput().size() > printed; }));
    ASSERT_TRUE(chat.Running());
    chat.Signal(SIGINT);
    const auto stopped = [&] {
      const std::string said = chat.StandardError();
      return std::count(said.begin(), said.end(), '\n') == answers;
    };
    ASSERT_TRUE(WaitUntil(stopped)) << chat.StandardError();
  }
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_NE(chat.StandardError().find("the answer was stopped"), std::string::npos);
  EXPECT_TRUE(server_->BecomesIdle());
  EXPECT_TRUE(WaitUntil([&] { return server_->Metric("polysketch_sessions") == before; }));
}

TEST_F(ChatClient, ErrorsSayWhatIsWrong) {
  const auto expect = [](const ProcessResult& result, int status, const std::string& words) {
    EXPECT_EQ(result.exit_status, status);
    EXPECT_NE(result.standard_error.find(words), std::string::npos) << result.standard_error;
    EXPECT_EQ(result.standard_output, "");
  };
  expect(Chat({"--temperature", "-1"}, "a\nb\n"), 1, "temperature: expected");
  expect(Chat({}, "a \xff\n"), 2, "standard input is not UTF-8 at byte 2");
  expect(Chat({"--system", "\xff"}, "a\n"), 2, "--system is not UTF-8");
  expect(Chat({"--server", "unix:/run/p.sock"}, ""), 2, "expected HOST:PORT of the HTTP port");
  expect(RunProcess(Command("127.0.0.1:1", {}, "a\n")), 1, "nothing answers at 127.0.0.1:1");

  const Server plain({.flags = {"--http-listen", "127.0.0.1:0"}});  // without a chat template
  expect(RunProcess(Command(plain.http_address(), {}, "a\nb\n")), 1, "chat template");
}

}  // namespace
}  // namespace polysketch::e2e
