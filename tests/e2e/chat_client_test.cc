// `polysketch chat`, as a script runs it, against the real server.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
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

// script gives the client a terminal.
TEST_F(ChatClient, TheArrowUpBringsTheLastLineBack) {
  const json first = Respond({{"input", "It was late"}});
  const json second = Respond({{"input", "It was late"}, {"previous_response_id", first.at("id")}});
  ASSERT_NE(Text(first), Text(second));
  const std::string command = StrCat(Binary("polysketch"), " chat --server ",
                                     server_->http_address(), " --temperature 0 --max-tokens 9");
  const ProcessResult chat =
      RunProcess({.arguments = {"/usr/bin/script", "-qec", command, "/dev/null"},
                  .environment = {{"TERM", "xterm"}},
                  .standard_input = "It was late\n\x1b[A\n/quit\n"});
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_output;
  size_t at = 0;
  for (std::string text : {Text(first), Text(second)}) {
    for (size_t end = 0; (end = text.find('\n', end)) != std::string::npos; end += 2)
      text.insert(end, "\r");
    at = chat.standard_output.find(text, at);
    ASSERT_NE(at, std::string::npos) << chat.standard_output;
  }
}

TEST_F(ChatClient, TheEndOfInputInAnAnswerEndsTheChatAfterIt) {
  const std::string command =
      StrCat("{ echo One; sleep 0.7; printf '\\004'; sleep 3; } | timeout 20 script -qec '",
             Binary("polysketch"), " chat --server ", server_->http_address(),
             " --max-tokens 4000' /dev/null");
  const ProcessResult chat =
      RunProcess({.arguments = {"/bin/sh", "-c", command}, .environment = {{"TERM", "xterm"}}});
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_output;
}

TEST_F(ChatClient, OnATerminalNeitherCtrlZNorALineThatIsNotUtf8EndsIt) {
  // `script` makes the program the leader of a session, as a container does.
  const std::string command = StrCat(
      "{ sleep 0.7; printf 'ab\\032'; sleep 0.4; printf '\\n/fork kept\\n\\377/fork "
      "lost\\n/quit\\n'; "
      "sleep 1; } | timeout 20 script -qec '",
      Binary("polysketch"), " chat --server ", server_->http_address(),
      " --max-tokens 1' /dev/null");
  const ProcessResult chat =
      RunProcess({.arguments = {"/bin/sh", "-c", command}, .environment = {{"TERM", "xterm"}}});
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_output;
  const std::string& shown = chat.standard_output;
  EXPECT_NE(shown.find("/load kept returns to it"), std::string::npos) << shown;
  EXPECT_NE(shown.find("standard input: expected UTF-8"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("/load lost"), std::string::npos) << shown;
}

TEST_F(ChatClient, CommandsChangeTheConversation) {
  const auto answer = [](const json& input, const std::string& system) {
    json body = {{"input", input}, {"store", false}};
    if (!system.empty()) body["instructions"] = system;
    return Text(Respond(body));
  };
  const auto user = [](const std::string& text) {
    return json{{"role", "user"}, {"content", text}};
  };
  const auto said = [](const std::string& text) {
    return json{{"role", "assistant"}, {"content", text}};
  };
  const std::string one = answer(json::array({user("One")}), "");
  const json after_one = {user("One"), said(one)};
  const auto then = [](json items, const json& item) {
    items.push_back(item);
    return items;
  };
  const std::string two = answer(then(after_one, user("Two")), "");
  const std::string three = answer(then(after_one, user("Three")), "");
  const std::string kind =
      answer(then(then(then(after_one, user("Three")), said(three)), user("/Four")), "Be kind");
  const std::string other =
      answer(then(then(then(after_one, user("Two")), said(two)), user("Five")), "");

  const double before = server_->Metric("polysketch_sessions");
  const std::string file = folder_ / "saved";
  const Strings options = {"--temperature", "0", "--max-tokens", "9"};
  const ProcessResult chat =
      Chat(options, "One\n/fork\nTwo\n/regenerate\n/save " + file +
                        "\n/load fork-1\nThree\n/system Be kind\n/system\n//Four\n/quit\nSix\n");
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_error;
  EXPECT_EQ(chat.standard_output,
            one + "\n" + two + "\n" + two + "\n" + three + "\n" + kind + "\n");
  EXPECT_NE(chat.standard_error.find("/load fork-1 returns to it"), std::string::npos);
  EXPECT_NE(chat.standard_error.find("polysketch: Be kind\n"), std::string::npos);
  EXPECT_EQ(server_->Metric("polysketch_sessions"), before) << "all of them are deleted";

  const ProcessResult loaded = Chat(options, "/load " + file + "\nFive\n");
  EXPECT_EQ(loaded.standard_output, other + "\n") << loaded.standard_error;

  std::ofstream(folder_ / "other") << "not a conversation";
  const auto fails = [&](const std::string& line, const std::string& words) {
    const ProcessResult result = Chat(options, line + "\nOne\n");
    EXPECT_EQ(result.exit_status, 2) << line;
    EXPECT_EQ(result.standard_output, "") << "in a pipe the first error ends the program";
    EXPECT_NE(result.standard_error.find(words), std::string::npos) << result.standard_error;
  };
  fails("/sav x", "/sav: unknown command; did you mean /save?");
  fails("/etc/passwd", "// begins a message with a slash");
  fails("/regenerate", "/regenerate: expected a message to answer again");
  fails("/load", "/load: expected the name of a fork or a file");
  fails("/load /nonexistent/file", "cannot open /nonexistent/file");
  fails("/save /nonexistent/file", "/save: cannot write /nonexistent/file");
  fails("/save " + (folder_ / "other").string(), "expected JSON");
}

// Answers each request on a port of its own with the next of `answers`, and keeps the bodies.
class ScriptedServer {
 public:
  explicit ScriptedServer(Strings answers)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), answers_(std::move(answers)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    PS_CHECK(bind(fd_, name, size) == 0 && listen(fd_, 8) == 0);
    PS_CHECK(getsockname(fd_, name, &size) == 0);
    address_ = StrCat("127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] {
      for (const std::string& answer : answers_) Serve(answer);
    });
  }
  ~ScriptedServer() { close(fd_); }
  const std::string& address() const { return address_; }
  // The bodies, after all answers.
  Strings Bodies() {
    thread_.join();
    return bodies_;
  }

 private:
  void Serve(const std::string& answer) {
    const int client = accept(fd_, nullptr, nullptr);
    std::string request;
    char bytes[4096];
    const auto body = [&request] { return request.find("\r\n\r\n"); };
    const auto whole = [&] {
      const size_t length = request.find("Content-Length: ");
      return body() != std::string::npos &&
             request.size() - body() - 4 >=
                 (length < body() ? std::stoul(request.substr(length + 16)) : 0);
    };
    for (ssize_t count; !whole() && (count = read(client, bytes, sizeof(bytes))) > 0;)
      request.append(bytes, static_cast<size_t>(count));
    bodies_.push_back(request.substr(body() + 4));
    const std::string reply = StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", answer.size(),
                                     "\r\nConnection: close\r\n\r\n", answer);
    PS_CHECK(write(client, reply.data(), reply.size()) == std::ssize(reply));
    close(client);
  }

  const int fd_;
  const Strings answers_;
  std::string address_;
  Strings bodies_;
  std::thread thread_;
};

TEST_F(ChatClient, TheNextLineIsTheResultOfACall) {
  const json call = {{"type", "function_call"},
                     {"call_id", "c1"},
                     {"name", "clock"},
                     {"arguments", R"({"zone":"UTC"})"}};
  const auto completed = [](const std::string& id, const json& output) {
    const json event = {{"type", "response.completed"},
                        {"response", {{"id", id}, {"output", output}}}};
    return "data: " + event.dump() + "\n\n";
  };
  const json delta = {{"type", "response.output_text.delta"}, {"delta", "At noon."}};
  const std::string text = "data: " + delta.dump() + "\n\n";
  ScriptedServer server({completed("resp_1", json::array({call})),
                         text + completed("resp_2", json::array()), "{}", "{}"});
  const std::string file = folder_ / "tools.json";
  std::ofstream(file) << R"([{"type": "function", "function": {"name": "clock"}}])";
  const ProcessResult chat =
      RunProcess(Command(server.address(), {"--tools", file}, "When?\nnoon\n"));
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_error;
  EXPECT_EQ(chat.standard_output, "call clock({\"zone\":\"UTC\"})\nAt noon.\n");
  const Strings bodies = server.Bodies();
  EXPECT_EQ(json::parse(bodies[0]).at("tools").at(0).at("name"), "clock");
  const json second = json::parse(bodies[1]);
  EXPECT_EQ(second.at("previous_response_id"), "resp_1");
  EXPECT_EQ(
      second.at("input"),
      json::array({{{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "noon"}}}));

  ScriptedServer other({completed("resp_1", json::array({call})), "{}"});
  const ProcessResult ended = RunProcess(Command(other.address(), {"--tools", file}, "When?\n"));
  EXPECT_EQ(ended.exit_status, 0);
  EXPECT_NE(ended.standard_error.find("the call has no result"), std::string::npos);
  EXPECT_EQ(other.Bodies().size(), 2u) << "the response is deleted";

  std::ofstream(file) << "{}";
  const ProcessResult bad =
      RunProcess(Command(server_->http_address(), {"--tools", file}, "One\n"));
  EXPECT_EQ(bad.exit_status, 2);
  EXPECT_NE(bad.standard_error.find("--tools: expected an array of tools, found object"),
            std::string::npos)
      << bad.standard_error;
}

TEST_F(ChatClient, AModelWithoutATemplateChatsWithThePlainOne) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0", "--chat-template", "plain"}});
  const auto post = [&](const std::string& path, json body) {
    body["temperature"] = 0;
    body["max_tokens"] = 9;
    const HttpAnswer answer = Http(server.http_address(), path, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body).at("choices").at(0);
  };
  const auto complete = [&](const std::string& prompt) {
    return post("/v1/completions", {{"prompt", prompt}, {"stop", {"\nUser:", "\nAssistant:"}}})
        .at("text")
        .get<std::string>();
  };
  const auto trimmed = [](const std::string& text) {
    const size_t begin = std::min(text.size(), text.find_first_not_of(" \n"));
    return text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
  };
  const std::string first = complete("Be kind\n\nUser: It was late\nAssistant:");
  const std::string second = complete("Be kind\n\nUser: It was late\nAssistant: " + trimmed(first) +
                                      "\nUser: Why?\nAssistant:");
  const ProcessResult chat = RunProcess(Command(
      server.http_address(), {"--temperature", "0", "--max-tokens", "9", "--system", "Be kind"},
      "It was late\nWhy?\n"));
  EXPECT_EQ(chat.exit_status, 0) << chat.standard_error;
  const auto line = [](const std::string& text) {
    return text.ends_with('\n') ? text : text + "\n";
  };
  EXPECT_EQ(chat.standard_output, line(first) + line(second));

  json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
               {"guided_regex", "yes\\nUser: no"}};
  const json cut = post("/v1/chat/completions", body);
  EXPECT_EQ(cut.at("message").at("content"), "yes");
  EXPECT_EQ(cut.at("finish_reason"), "stop");
  EXPECT_TRUE(cut.value("stop_reason", json()).is_null()) << cut;
  body["stop"] = {"es"};
  const json own = post("/v1/chat/completions", body);
  EXPECT_EQ(own.at("message").at("content"), "y");
  EXPECT_EQ(own.at("stop_reason"), "es");
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
