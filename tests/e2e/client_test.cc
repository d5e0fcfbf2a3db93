// The command-line client, run as a person or a script runs it.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

class CommandLineClient : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<Server>(ServerOptions{.flags = {"--max-priority", "8"}});
  }
  static void TearDownTestSuite() { server_.reset(); }

  static ProcessOptions Command(Strings arguments, std::string standard_input = "") {
    arguments.insert(arguments.begin(), {Binary("polysketch"), "--server", server_->address()});
    return {.arguments = std::move(arguments),
            .environment = {},
            .standard_input = std::move(standard_input)};
  }
  static ProcessResult Run(Strings arguments, std::string standard_input = "") {
    return RunProcess(Command(std::move(arguments), std::move(standard_input)));
  }
  // Of a command that must succeed.
  static json RunJson(Strings arguments, std::string standard_input = "") {
    arguments.push_back("--json");
    const ProcessResult result = Run(std::move(arguments), std::move(standard_input));
    EXPECT_EQ(result.exit_status, 0) << result.standard_error;
    EXPECT_EQ(result.standard_error, "");
    return json::parse(result.standard_output);
  }

  static inline std::unique_ptr<Server> server_;
};

const Strings kGreedy = {"complete", "--max-tokens", "20", "--temperature", "0", "--ignore-eos"};

Strings With(Strings arguments, const Strings& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(CommandLineClient, CompletesFromEveryKindOfInput) {
  const std::string prompt = "It was late in the afternoon";
  const json by_text = RunJson(With(kGreedy, {"--prompt", prompt}));
  EXPECT_EQ(by_text.at("tokens").size(), 20u);
  EXPECT_EQ(by_text.at("finish_reason"), "length");
  EXPECT_EQ(by_text.at("usage").at("completion_tokens"), 20);
  EXPECT_GT(by_text.at("timings").at("total_seconds"), 0);
  EXPECT_FALSE(by_text.contains("logprobs"));

  for (const Strings& named : {Strings{"--prompt-file", "-"}, Strings{}})
    EXPECT_EQ(RunJson(With(kGreedy, named), prompt).at("tokens"), by_text.at("tokens"));
  EXPECT_EQ(RunJson(With(kGreedy, {prompt}), "not read").at("tokens"), by_text.at("tokens"));
  const ProcessResult ids = Run({"tokenize", "--prompt", prompt});
  const json by_ids = RunJson(With(kGreedy, {"--prompt-tokens", "-"}), ids.standard_output);
  EXPECT_EQ(by_ids.at("tokens"), by_text.at("tokens"));
  EXPECT_EQ(by_ids.at("text"), by_text.at("text"));
  EXPECT_EQ(Run({"tokenize", "--no-bos", "--parse-special", "--prompt", "</s>"}).standard_output,
            "2\n");

  const ProcessResult plain = Run(With(kGreedy, {"--prompt", prompt}));
  EXPECT_EQ(plain.exit_status, 0) << plain.standard_error;
  EXPECT_EQ(plain.standard_output, by_text.at("text").get<std::string>() + "\n");
  EXPECT_EQ(plain.standard_error, "");
}

TEST_F(CommandLineClient, SeveralChoices) {
  const Strings base = {"complete", "--prompt", "It was late", "--max-tokens",
                        "12",       "--seed",   "7",           "--ignore-eos"};
  const json several = RunJson(With(base, {"--n", "3", "--priority", "2", "--tenant", "acme"}));
  const json& choices = several.at("choices");
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_EQ(several.at("usage").at("completion_tokens"), 36);
  EXPECT_EQ(several.at("text"), "");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choices[i].at("finish_reason"), "length");
    // Its seed alone gives it again.
    const std::string seed = choices[i].at("seed").get<std::string>();
    const json one = RunJson({"complete", "--prompt", "It was late", "--max-tokens", "12", "--seed",
                              seed, "--ignore-eos"});
    EXPECT_EQ(choices[i].at("tokens"), one.at("tokens"));
    EXPECT_EQ(choices[i].at("text"), one.at("text"));
  }
  EXPECT_EQ(choices[0].at("seed"), "7");
  EXPECT_FALSE(choices[0].contains("logprob_sum")) << "none was computed";

  const json best = RunJson(With(base, {"--n", "2", "--best-of", "6"}));
  ASSERT_EQ(best.at("choices").size(), 2u);
  EXPECT_GE(best.at("choices")[0].at("logprob_sum"), best.at("choices")[1].at("logprob_sum"));
  EXPECT_EQ(best.at("usage").at("completion_tokens"), 72);
  const ProcessResult text = Run(With(base, {"--best-of", "6"}));
  EXPECT_EQ(text.standard_output, best.at("choices")[0].at("text").get<std::string>() + "\n");

  EXPECT_EQ(Run(With(base, {"--n", "2"})).exit_status, 2);
  const ProcessResult priority = Run(With(base, {"--priority", "9"}));
  EXPECT_EQ(priority.exit_status, 1);
  EXPECT_NE(priority.standard_error.find("priority: expected -8 to 8, found 9"), std::string::npos);
}

TEST_F(CommandLineClient, DraftsChangeNothing) {
  // models/demo repeats itself under greedy sampling: drafts hold.
  const Strings base = {"complete",      "--prompt", "the the the the", "--max-tokens", "200",
                        "--temperature", "0",        "--ignore-eos",    "--logprobs",   "2"};
  const json plain = RunJson(With(base, {"--draft-tokens", "0"}));
  const json drafted = RunJson(With(base, {"--draft-tokens", "16"}));
  for (const char* field : {"text", "tokens", "logprobs"}) {
    EXPECT_EQ(drafted.at(field), plain.at(field)) << field;
  }
}

TEST_F(CommandLineClient, PassesItsOptionsOn) {
  const json one = RunJson({"complete",     "--prompt",
                            "The sea",      "--max-tokens",
                            "12",           "--temperature",
                            "0.8",          "--top-k",
                            "50",           "--top-p",
                            "0.9",          "--min-p",
                            "0.01",         "--repetition-penalty",
                            "1.1",          "--frequency-penalty",
                            "0.2",          "--presence-penalty",
                            "0.1",          "--logit-bias",
                            "317=-5",       "--logit-bias=283=2",
                            "--seed",       "9",
                            "--logprobs",   "2",
                            "--echo",       "--ignore-eos",
                            "--request-id", "cli-1",
                            "--timeout",    "100"});
  const int prompt_tokens = one.at("usage").at("prompt_tokens");
  EXPECT_EQ(one.at("tokens").size(), 12u + static_cast<size_t>(prompt_tokens));
  EXPECT_EQ(one.at("seed"), "9");
  EXPECT_TRUE(one.at("text").get<std::string>().find("The sea") != std::string::npos)
      << one.at("text");
  const json& logprobs = one.at("logprobs");
  ASSERT_EQ(logprobs.size(), one.at("tokens").size());
  EXPECT_TRUE(logprobs[0].at("logprob").is_null());
  const json later = RunJson(With(
      kGreedy, {"--prompt", "It was late", "--echo", "--logprobs", "0", "--logprobs-from", "2"}));
  EXPECT_TRUE(later.at("logprobs").at(1).at("logprob").is_null());
  EXPECT_LT(later.at("logprobs").at(2).at("logprob"), 0);
  EXPECT_LT(logprobs[1].at("logprob"), 0);
  EXPECT_EQ(logprobs[1].at("top").size(), 2u);
  EXPECT_TRUE(server_->Logs("cli-1"));

  const json stopped =
      RunJson(With(kGreedy, {"--prompt", "It was late", "--stop", "zzzz", "--stop", " "}));
  EXPECT_EQ(stopped.at("finish_reason"), "stop");
  EXPECT_EQ(stopped.at("matched_stop"), " ");
}

TEST_F(CommandLineClient, ScoresWhateverTheChunks) {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "It was late in the afternoon, number " + std::to_string(i) + ".\n";
  const json by_text = RunJson({"score", "--prompt-file", "-"}, text);
  const ProcessResult ids = Run({"tokenize", "--prompt-file", "-"}, text);
  ASSERT_EQ(ids.exit_status, 0) << ids.standard_error;
  const json whole = RunJson({"score", "--prompt-tokens", "-"}, ids.standard_output);
  const json pieces =
      RunJson({"score", "--prompt-tokens", "-", "--chunk-tokens", "17"}, ids.standard_output);
  EXPECT_EQ(whole.at("logprobs").size() + 1, whole.at("tokens").get<size_t>());
  EXPECT_GT(whole.at("perplexity"), 1);
  for (const json& other : {by_text, pieces}) {
    EXPECT_EQ(other.at("logprobs"), whole.at("logprobs"));
    EXPECT_EQ(other.at("perplexity"), whole.at("perplexity"));
    EXPECT_EQ(other.at("tokens"), whole.at("tokens"));
  }
}

TEST_F(CommandLineClient, ScoresInASession) {
  const json prompt = RunJson({"tokenize", "--prompt", "It was late"});
  const std::string id = RunJson({"session", "create"}).at("session");
  RunJson({"session", "append", id, "--prompt", "It was late"});
  const std::string count = std::to_string(prompt.at("tokens").size());
  const json rest = RunJson(
      {"score", "--session", id, "--expected-position", count, "--prompt", " in the afternoon."});
  EXPECT_EQ(rest.at("logprobs").size(), rest.at("tokens").get<size_t>());
  EXPECT_EQ(rest.at("greedy").size(), rest.at("tokens").get<size_t>());
  const json whole = RunJson({"score", "--prompt", "It was late in the afternoon."});
  ASSERT_EQ(whole.at("tokens").get<size_t>(),
            rest.at("tokens").get<size_t>() + prompt.at("tokens").size());
  for (const char* const field : {"logprobs", "greedy"}) {
    const json& all = whole.at(field);
    EXPECT_TRUE(std::equal(rest.at(field).begin(), rest.at(field).end(),
                           all.end() - static_cast<ptrdiff_t>(rest.at(field).size())));
  }
  RunJson({"score", "--session", id, "--expected-position", count, "--prompt", " again"});
}

// 5 MiB, in less than half a second: the prompt is refused at its end.
TEST_F(CommandLineClient, StreamsALargePrompt) {
  std::string text = "prefix";
  while (text.size() < (5 << 20)) text += " caf\xC3\xA9";
  const Server small({.flags = {"--max-prompt-tokens", "1000000"}});
  const auto complete = [&](const Strings& arguments) {
    return RunProcess(
        {.arguments = With({Binary("polysketch"), "--server", small.address()}, arguments),
         .standard_input = text});
  };
  const ProcessResult refused = complete({"complete", "--prompt-file", "-"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_NE(refused.standard_error.find("expected at most 1000000 tokens"), std::string::npos)
      << refused.standard_error;
  text = R"({"custom_id": "a", "body": {"prompt": {"text": ")" + text + "\"}}}\n";
  const ProcessResult batch = complete({"batch"});
  EXPECT_NE(batch.standard_output.find("expected at most 1000000 tokens"), std::string::npos)
      << batch.standard_output << batch.standard_error;
}

TEST_F(CommandLineClient, SmallCommandsAnswer) {
  const json tokenized = RunJson({"tokenize", "--prompt", "It was late"});
  EXPECT_EQ(tokenized.at("tokens").size(), tokenized.at("pieces").size());
  const ProcessResult ids = Run({"tokenize", "--prompt", "It was late", "--no-bos"});
  EXPECT_EQ(RunJson({"detokenize", "--prompt-tokens", "-"}, ids.standard_output).at("text"),
            "It was late");
  EXPECT_EQ(RunJson({"info"}).at("limits").at("max_sequences"), 16);
  EXPECT_EQ(RunJson({"info"}).at("limits").at("default_max_tokens"), 4096);
  EXPECT_EQ(RunJson({"health"}).at("status"), "SERVING");
  EXPECT_EQ(Run({"health"}).standard_output, "SERVING\n");
  const ProcessResult info = Run({"info"});
  EXPECT_NE(info.standard_output.find("learned_sketch_mixed"), std::string::npos)
      << info.standard_output;
}

TEST_F(CommandLineClient, TellsWhatIsWrong) {
  struct Case {
    ProcessResult result;
    int exit_status;
    const char* says;
  };
  const ProcessOptions no_server = {
      .arguments = {Binary("polysketch"), "--server", "127.0.0.1:1", "info"}};
  const ProcessOptions metrics_port = {
      .arguments = {Binary("polysketch"), "info", "--server", server_->metrics_address()}};
  const ProcessOptions from_environment = {.arguments = {Binary("polysketch"), "health"},
                                           .environment = {{"POLYSKETCH_SERVER", "127.0.0.1:2"}}};
  const ProcessOptions url = {
      .arguments = {Binary("polysketch"), "--server", "http://localhost:8000", "info"}};
  const ProcessOptions bad_variable = {.arguments = {Binary("polysketch"), "health"},
                                       .environment = {{"POLYSKETCH_SERVER", "a:b"}}};
  const Case cases[] = {
      {RunProcess(url), 2,
       "--server: expected HOST:PORT of the gRPC port, found 'http://localhost"},
      {RunProcess(bad_variable), 2, "POLYSKETCH_SERVER: expected HOST:PORT"},
      {RunProcess(no_server), 1, "nothing answers at 127.0.0.1:1"},
      {RunProcess(metrics_port), 1, "not with gRPC"},
      {RunProcess(from_environment), 1, "nothing answers at 127.0.0.1:2"},
      {Run({"complete", "--prompt", "x", "--top-p", "7"}), 1, "INVALID_ARGUMENT: sampling.top_p"},
      {Run({"complete", "--prompt", "x", "--timeout", "0.000001"}), 1, "DEADLINE_EXCEEDED"},
      {Run({"health", "--service", "unknown"}), 1, "NOT_FOUND"},
      {Run({}), 2, "Usage"},
      {Run({"frobnicate"}), 2, "frobnicate: unknown command (see --help)"},
      {Run({"comlpete", "x"}), 2, "comlpete: unknown command; did you mean complete?"},
      {Run({"complete", "x", "--max-token", "3"}), 2,
       "--max-token: unknown option of complete; did you mean --max-tokens?"},
      {Run({"complete", "It", "was"}), 2, "was: unexpected argument of complete"},
      {Run({"complete"}), 2, "expected one input"},
      {Run({"complete", "--prompt", "x", "--logprobs", "2"}), 2,
       "--logprobs: expected --json or --json-stream beside it"},
      {Run({"complete", "--prompt", "x", "--tenant", "a\nb"}), 2, "--tenant: expected printable"},
      {Run({"complete", "--prompt", "x", "--request-id", "\xC3\xA4"}), 2, "--request-id: expected"},
      {Run({"complete", "--prompt", "x", "--session", "\xC3\xA4"}), 1, "NOT_FOUND"},
      {Run({"complete", "--prompt", "x", "--cert", "c.pem"}), 2, "--cert and --key: expected both"},
      {Run({"complete", "--prompt", "x", "--tls-ca", "/nonexistent"}), 2, "--tls-ca: cannot read"},
      {Run({"complete", "--prompt", "x", "--prompt-file", "-"}), 2, "expected one input"},
      {Run({"complete", "--prompt", "\xFF"}), 2, "not UTF-8 at byte 0"},
      {Run({"complete", "--prompt-file", "/nonexistent"}), 2, "/nonexistent"},
      {Run({"score", "--prompt-file", "-"}, "good, then \xC3("), 2, "not UTF-8 at byte 11"},
      {Run({"score", "--prompt-tokens", "-"}, "1 2 three"), 2, "'three'"},
      {Run({"score", "--prompt-tokens", "-"}, "1 2 99999"), 1, "tokens.ids[2]"},
      {Run({"score", "--prompt-tokens", "-"}, ""), 1, "INVALID_ARGUMENT"},
      {Run({"info", "extra"}), 2, "extra"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.result.exit_status, c.exit_status) << c.says;
    EXPECT_NE(c.result.standard_error.find(c.says), std::string::npos) << c.result.standard_error;
    EXPECT_EQ(c.result.standard_output, "") << c.says;
  }
}

TEST_F(CommandLineClient, ARefusalSaysWhenToComeAgain) {
  const Server server({.flags = {"--max-sequences", "1", "--max-queue", "0"}});
  const auto command = [&](Strings arguments) {
    arguments.insert(arguments.begin(), {Binary("polysketch"), "--server", server.address()});
    return ProcessOptions{.arguments = arguments};
  };
  Process first(
      command({"complete", "--prompt", "It was late", "--ignore-eos", "--max-tokens", "1000000"}));
  ASSERT_TRUE(server.ComesToRun(1)) << first.StandardError();
  const ProcessResult second = RunProcess(command({"complete", "--prompt", "x"}));
  EXPECT_EQ(second.exit_status, 1);
  const std::string& said = second.standard_error;
  EXPECT_NE(said.find("RESOURCE_EXHAUSTED"), std::string::npos) << said;
  const size_t delay = said.find("; again in ");
  ASSERT_NE(delay, std::string::npos) << said;
  EXPECT_GT(std::stoi(said.substr(delay + 11)), 0) << said;
  first.Signal(SIGINT);
  EXPECT_EQ(first.Wait(), 130);
}

TEST_F(CommandLineClient, AFullDiskIsAnError) {
  for (const std::string command : {"complete --prompt x --max-tokens 3", "info", "info --json"}) {
    const std::string line =
        Binary("polysketch") + " --server " + server_->address() + " " + command + " >/dev/full";
    const ProcessResult result = RunProcess({.arguments = {"/bin/sh", "-c", line}});
    EXPECT_EQ(result.exit_status, 1) << command;
    EXPECT_NE(result.standard_error.find("could not be written"), std::string::npos) << command;
  }
}

TEST_F(CommandLineClient, EveryCommandHasHelp) {
  for (const char* command :
       {"complete", "batch", "score", "tokenize", "detokenize", "info", "health"}) {
    const ProcessResult help = Run({command, "--help"});
    EXPECT_EQ(help.exit_status, 0);
    EXPECT_TRUE(help.standard_output.starts_with(std::string("Usage: polysketch ") + command))
        << help.standard_output;
    EXPECT_NE(Run({"--help"}).standard_output.find(command), std::string::npos);
  }
}

TEST_F(CommandLineClient, NoValueOfAnOptionCrashesIt) {
  int options = 0;
  for (const std::string command :
       {"complete", "batch", "score", "tokenize", "info", "session append 0"}) {
    std::istringstream words(command + " --help");
    const Strings help{std::istream_iterator<std::string>(words), {}};
    std::istringstream lines(Run(help).standard_output);
    for (std::string line; std::getline(lines, line);) {
      const size_t name = line.find("--");
      if (!line.starts_with("  ") || name == line.npos || line.starts_with("   ")) continue;
      const std::string option = line.substr(name, line.find_first_of(" =,", name) - name);
      // The call options are those of every command. --output writes files.
      if (option == "--help" || option == "--output") continue;
      constexpr std::string_view kCall =
          "--server --tls-ca --cert --key --api-key --request-id --tenant --timeout --json";
      if (kCall.find(option) != kCall.npos && command != "info") continue;
      for (const std::string value : {"", "=", "7", "7=", "x"}) {
        Strings arguments(help.begin(), help.end() - 1);
        arguments.insert(arguments.end(), {option + "=" + value, "--timeout", "1"});
        const ProcessResult result = Run(arguments);
        EXPECT_GE(result.exit_status, 0) << option << "=" << value;
        EXPECT_LE(result.exit_status, 2) << option << "=" << value << result.standard_error;
      }
      ++options;
    }
  }
  EXPECT_GT(options, 40);
}

// A request that an interrupt ends.
Strings Endless(const Strings& more) {
  return With({"complete", "--prompt", "It was late", "--temperature", "0", "--ignore-eos",
               "--max-tokens", "1000000"},
              more);
}

TEST_F(CommandLineClient, StreamsAndCancelsOnInterrupt) {
  Process process(Command(Endless({})));
  ASSERT_TRUE(WaitUntil([&] { return process.StandardOutput().size() > 20; }))
      << process.StandardError();
  EXPECT_TRUE(process.Running()) << "text comes before the end";
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130);
  EXPECT_TRUE(process.StandardOutput().ends_with("\n"));
  EXPECT_TRUE(server_->BecomesIdle());
}

// Waits until the server has generated more tokens, and interrupts the process.
std::string InterruptedOutput(const Server& server, const char* metric, double tokens,
                              Process* process) {
  const double before = server.Metric(metric);
  EXPECT_TRUE(WaitUntil([&] { return server.Metric(metric) > before + tokens; }));
  process->Signal(SIGINT);
  EXPECT_EQ(process->Wait(), 130);
  EXPECT_EQ(process->StandardError(), "polysketch: interrupted\n");
  return process->StandardOutput();
}

TEST_F(CommandLineClient, AnInterruptPrintsTheJsonOfWhatArrived) {
  Process process(Command(Endless({"--json"})));
  const json got =
      json::parse(InterruptedOutput(*server_, "polysketch_generation_tokens_total", 200, &process));
  EXPECT_EQ(got.at("finish_reason"), "cancelled");
  EXPECT_GT(got.at("tokens").size(), 20u);
  EXPECT_EQ(got.at("usage").at("completion_tokens"), got.at("tokens").size());
  const json want =
      RunJson({"complete", "--prompt", "It was late", "--temperature", "0", "--ignore-eos",
               "--max-tokens", std::to_string(got.at("tokens").size())});
  EXPECT_EQ(got.at("tokens"), want.at("tokens"));

  std::string ids;
  for (int i = 0; i < 100000; ++i) ids += std::to_string(300 + i % 1000) + " ";
  Process score(Command({"score", "--prompt-tokens", "-", "--json"}, ids));
  const json scored =
      json::parse(InterruptedOutput(*server_, "polysketch_prompt_tokens_total", 2000, &score));
  EXPECT_EQ(scored.at("finish_reason"), "cancelled");
  EXPECT_GT(scored.at("logprobs").size(), 100u);
  EXPECT_EQ(scored.at("tokens"), scored.at("logprobs").size() + 1);
  EXPECT_GT(scored.at("perplexity"), 1);
}

std::vector<json> Lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST_F(CommandLineClient, StreamsJson) {
  const Strings base = With(kGreedy, {"--prompt", "It was late", "--echo", "--logprobs", "1"});
  const json whole = RunJson(base);
  const ProcessResult result = Run(With(base, {"--json-stream"}));
  EXPECT_EQ(result.exit_status, 0) << result.standard_error;
  const std::vector<json> lines = Lines(result.standard_output);
  ASSERT_GE(lines.size(), 3u);  // the echo, the completion in one or more, the last
  std::string text;
  json tokens = json::array(), logprobs = json::array();
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    EXPECT_FALSE(lines[i].contains("usage") || lines[i].contains("choice")) << lines[i];
    EXPECT_EQ(lines[i].contains("echoed"), tokens.size() < whole.at("usage").at("prompt_tokens"));
    text += lines[i].at("text").get<std::string>();
    for (const json& token : lines[i].at("tokens")) tokens.push_back(token);
    for (const json& logprob : lines[i].at("logprobs")) logprobs.push_back(logprob);
  }
  EXPECT_EQ(text + lines.back().at("text").get<std::string>(), whole.at("text"));
  EXPECT_EQ(tokens, whole.at("tokens"));
  EXPECT_EQ(logprobs, whole.at("logprobs"));
  EXPECT_EQ(lines.back().at("finish_reason"), "length");
  EXPECT_EQ(lines.back().at("usage"), whole.at("usage"));

  const std::vector<json> choices =
      Lines(Run({"complete", "--prompt", "It", "--n", "2", "--max-tokens", "3", "--json-stream"})
                .standard_output);
  EXPECT_EQ(std::ranges::count_if(choices,
                                  [](const json& line) {
                                    return line.contains("choice") &&
                                           line.contains("finish_reason");
                                  }),
            2);

  Process process(Command(Endless({"--json-stream"})));
  const std::vector<json> part =
      Lines(InterruptedOutput(*server_, "polysketch_generation_tokens_total", 200, &process));
  size_t count = 0;
  for (size_t i = 0; i + 1 < part.size(); ++i) count += part[i].at("tokens").size();
  EXPECT_EQ(part.back().at("finish_reason"), "cancelled");
  EXPECT_EQ(part.back().at("usage").at("completion_tokens"), count);
  EXPECT_GT(count, 20u);
}

// script gives the client a terminal.
TEST_F(CommandLineClient, ATerminalGetsNoControlCharacters) {
  const std::filesystem::path folder = NewTemporaryFolder();
  constexpr char kEscape[] = "31";  // the token <0x1B> of models/demo
  WriteFile(folder / "ids", kEscape);
  WriteFile(folder / "c1", "198 159");  // <0xC2> <0x9B>
  const std::string client = Binary("polysketch") + " --server " + server_->address() + " ";
  const std::string complete = "complete --prompt x --max-tokens 2 --temperature 0 --logit-bias " +
                               std::string(kEscape) + "=100";
  struct Case {
    std::string command;
    const char* piped;
    const char* shown;
  };
  const Case cases[] = {
      {"detokenize --prompt-tokens " + (folder / "ids").string(), "\x1b\n", "\\u001b\r\n"},
      {complete, "\x1b\x1b\n", "\\u001b\\u001b\r\n"},
      // JSON escapes C0 in any case, and C1 on a terminal.
      {"detokenize --json --prompt-tokens " + (folder / "c1").string(), "\xC2\x9B", "\\u009b"},
      {"session delete a\x1b[31m", "", "\\u001b[31m"},
  };
  for (const Case& c : cases) {
    const ProcessResult piped = RunProcess({.arguments = {"/bin/sh", "-c", client + c.command}});
    EXPECT_NE(piped.standard_output.find(c.piped), std::string::npos) << piped.standard_output;
    const ProcessResult terminal =
        RunProcess({.arguments = {"/usr/bin/script", "-qec", client + c.command, "/dev/null"}});
    EXPECT_NE(terminal.standard_output.find(c.shown), std::string::npos)
        << terminal.standard_output;
    EXPECT_EQ(terminal.standard_output.find('\x1b'), std::string::npos) << terminal.standard_output;
  }
  std::filesystem::remove_all(folder);
}

class BatchCommand : public CommandLineClient {
 protected:
  BatchCommand() : folder_(NewTemporaryFolder()) {}
  ~BatchCommand() override { std::filesystem::remove_all(folder_); }

  static std::string Line(const std::string& id, const std::string& prompt, int tokens,
                          const std::string& seed) {
    const json body = {{"prompt", {{"text", prompt}}},
                       {"max_tokens", tokens},
                       {"ignore_eos", true},
                       {"sampling", {{"seed", seed}}}};
    return json({{"custom_id", id}, {"body", body}}).dump() + "\n";
  }
  static std::string Id(const json& line) {
    return line.at("custom_id").is_null() ? "" : line.at("custom_id").get<std::string>();
  }
  std::vector<json> OutputLines() const { return Lines(ReadFile(folder_ / "out")); }

  const std::filesystem::path folder_;
};

TEST_F(BatchCommand, AnswersAsTheCommandComplete) {
  std::string input;
  for (int i = 0; i < 12; ++i) input += Line("id-" + std::to_string(i), "It was", 30 - 2 * i, "7");
  input += Line("bad", "It was", -1, "7") + "no JSON\n";
  const ProcessResult result = Run({"batch", "--in-order", "--concurrency", "5"}, input);
  EXPECT_EQ(result.exit_status, 1) << "two requests failed";
  EXPECT_EQ(result.standard_error, "polysketch: 12 succeeded, 2 failed, 0 skipped\n");
  const std::vector<json> lines = Lines(result.standard_output);
  ASSERT_EQ(lines.size(), 14u);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(lines[i].at("custom_id"), "id-" + std::to_string(i));
    EXPECT_TRUE(lines[i].at("error").is_null());
    const json one = RunJson({"complete", "--prompt", "It was", "--max-tokens",
                              std::to_string(30 - 2 * i), "--seed", "7", "--ignore-eos"});
    for (const char* field : {"text", "tokens", "seed", "finish_reason"}) {
      EXPECT_EQ(lines[i].at("response").at(field), one.at(field)) << i << field;
    }
  }
  EXPECT_TRUE(lines[12].at("response").is_null());
  EXPECT_EQ(lines[12].at("error").at("code"), "INVALID_ARGUMENT");
  EXPECT_TRUE(lines[12].at("error").at("message").get<std::string>().starts_with("max_tokens: "));
  EXPECT_EQ(lines[13].at("error").at("message"),
            "line 14: expected JSON, found an error at byte 1: expected a value");
}

TEST_F(BatchCommand, ContinuesItsOutput) {
  const Strings batch = {"batch", "--input", folder_ / "in", "--output", folder_ / "out"};
  WriteFile(folder_ / "in", Line("a", "It", 3, "1") + Line("b", "It", -3, "1"));
  EXPECT_EQ(Run(batch).exit_status, 1);
  WriteFile(folder_ / "in",
            Line("a", "It", 3, "1") + Line("b", "It", 3, "1") + Line("c", "It", 3, "1"));
  const ProcessResult second = Run(batch);
  EXPECT_EQ(second.exit_status, 0) << second.standard_error;
  EXPECT_EQ(second.standard_error, "polysketch: 2 succeeded, 0 failed, 1 skipped\n");
  std::vector<std::string> ids;
  for (const json& line : OutputLines()) ids.push_back(Id(line));
  EXPECT_EQ(std::ranges::count(ids, "a"), 1);
  EXPECT_EQ(std::ranges::count(ids, "b"), 2) << "the error, then the response";
  EXPECT_EQ(std::ranges::count(ids, "c"), 1);
  EXPECT_EQ(Run(batch).standard_error, "polysketch: 0 succeeded, 0 failed, 3 skipped\n");
}

TEST_F(BatchCommand, ReadsFilesOfOpenAi) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const auto line = [](const std::string& id, const std::string& url, const json& body) {
    return json({{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}).dump() +
           "\n";
  };
  const auto body = [](int tokens) {
    return json({{"prompt", "It was"}, {"max_tokens", tokens}, {"temperature", 0}});
  };
  std::string input;
  for (int i = 0; i < 12; ++i) input += line(std::to_string(i), "/v1/completions", body(1 + i));
  input += line("bad", "/v1/completions", body(-1)) + line("path", "/v1/nothing", body(1));
  input += line("stream", "/v1/completions", {{"stream", true}}) + Line("grpc", "It", 3, "1");
  WriteFile(folder_ / "in", input);
  const auto run = [&](Strings more = {}) {
    return RunProcess({.arguments = With({Binary("polysketch"), "batch", "--server",
                                          server.address(), "--http-server", server.http_address(),
                                          "--input", folder_ / "in", "--output", folder_ / "out"},
                                         more)});
  };
  const ProcessResult result = run({"--concurrency", "5", "--in-order"});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.standard_error, "polysketch: 13 succeeded, 3 failed, 0 skipped\n");
  const std::vector<json> lines = OutputLines();
  ASSERT_EQ(lines.size(), 16u);
  std::set<std::string> ids;
  for (int i = 0; i < 12; ++i) {
    const json& response = lines[i].at("response");
    EXPECT_EQ(lines[i].at("custom_id"), std::to_string(i));
    EXPECT_TRUE(lines[i].at("error").is_null());
    EXPECT_EQ(response.at("status_code"), 200);
    ids.insert(response.at("request_id").get<std::string>());
    const json one =
        json::parse(Http(server.http_address(), "/v1/completions", body(1 + i).dump()).body);
    EXPECT_EQ(response.at("body").at("choices"), one.at("choices")) << i;
    EXPECT_EQ(response.at("body").at("usage").at("completion_tokens"), 1 + i);
  }
  EXPECT_EQ(ids.size(), 12u);
  EXPECT_EQ(lines[12].at("response").at("status_code"), 400);
  EXPECT_EQ(lines[12].at("response").at("body").at("error").at("param"), "max_tokens");
  EXPECT_TRUE(lines[12].at("error").is_null());
  EXPECT_EQ(lines[13].at("response").at("status_code"), 404);
  EXPECT_EQ(lines[14].at("error").at("message"),
            "line 15: body.stream: expected false, found true");
  EXPECT_EQ(lines[15].at("response").at("finish_reason"), "length") << "a CompleteRequest";

  EXPECT_EQ(run().standard_error, "polysketch: 0 succeeded, 3 failed, 13 skipped\n");
  EXPECT_EQ(OutputLines().size(), 18u) << "two errors of the server again, the refusal once";
}

TEST_F(BatchCommand, OverHttpItWaitsForAFullQueueAndNamesAServerThatIsAway) {
  const Server server(
      {.flags = {"--http-listen", "127.0.0.1:0", "--max-sequences", "1", "--max-queue", "0"}});
  std::string input;
  for (int i = 0; i < 4; ++i) {
    const json body = {{"prompt", "It"}, {"max_tokens", 20}};
    input += json({{"custom_id", std::to_string(i)}, {"url", "/v1/completions"}, {"body", body}})
                 .dump() +
             "\n";
  }
  const auto run = [&](const std::string& address, const char* retries) {
    return RunProcess({.arguments = {Binary("polysketch"), "batch", "--http-server", address,
                                     "--retries", retries},
                       .standard_input = input});
  };
  const ProcessResult patient = run(server.http_address(), "1000");
  EXPECT_EQ(patient.exit_status, 0) << patient.standard_output;
  EXPECT_EQ(Lines(patient.standard_output).size(), 4u);
  const ProcessResult away = run("127.0.0.1:1", "0");
  EXPECT_EQ(away.exit_status, 1);
  EXPECT_TRUE(away.standard_error.starts_with("polysketch: nothing answers at 127.0.0.1:1"));
  EXPECT_EQ(away.standard_output, "");
}

TEST_F(BatchCommand, AnInterruptKeepsWhatIsDone) {
  WriteFile(folder_ / "in", Line("quick", "It", 3, "1") + Line("endless", "It", 1000000, "1"));
  const Strings batch = {"batch", "--input", folder_ / "in", "--output", folder_ / "out"};
  Process process(Command(batch));
  ASSERT_TRUE(WaitUntil(
      [&] { return std::filesystem::exists(folder_ / "out") && OutputLines().size() == 1; }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130);
  EXPECT_EQ(process.StandardError(), "polysketch: 1 succeeded, 0 failed, 0 skipped\n");
  EXPECT_EQ(OutputLines().size(), 1u);
  EXPECT_TRUE(server_->BecomesIdle());
}

TEST_F(BatchCommand, WaitsForAFullQueue) {
  const Server server({.flags = {"--max-sequences", "1", "--max-queue", "0"}});
  std::string input;
  for (int i = 0; i < 6; ++i) input += Line(std::to_string(i), "It", 20, "1");
  const auto run = [&](const char* retries) {
    return RunProcess({.arguments = {Binary("polysketch"), "batch", "--server", server.address(),
                                     "--concurrency", "4", "--retries", retries},
                       .standard_input = input});
  };
  const ProcessResult patient = run("1000");
  EXPECT_EQ(patient.exit_status, 0) << patient.standard_output;
  EXPECT_EQ(Lines(patient.standard_output).size(), 6u);
  const ProcessResult impatient = run("0");
  EXPECT_EQ(impatient.exit_status, 1);
  EXPECT_NE(impatient.standard_output.find("RESOURCE_EXHAUSTED"), std::string::npos);
}

TEST_F(BatchCommand, SaysWhatIsWrongOnce) {
  const ProcessResult no_server =
      RunProcess({.arguments = {Binary("polysketch"), "batch", "--server", "127.0.0.1:1"},
                  .standard_input = Line("a", "It", 3, "1") + Line("b", "It", 3, "1")});
  EXPECT_EQ(no_server.exit_status, 1);
  EXPECT_TRUE(no_server.standard_error.starts_with("polysketch: nothing answers at 127.0.0.1:1"));
  EXPECT_EQ(no_server.standard_output, "");
  EXPECT_EQ(Run({"batch", "--input", "/nonexistent"}).exit_status, 2);
  EXPECT_EQ(Run({"batch", "--output", "/nonexistent/out"}).exit_status, 2);
  const ProcessResult full =
      Run({"batch", "--output", "/dev/full"}, Line("a", "It", 3, "1") + Line("b", "It", 3, "1"));
  EXPECT_EQ(full.exit_status, 1);
  EXPECT_EQ(full.standard_error, "polysketch: the output could not be written\n");
}

}  // namespace
}  // namespace polysketch::e2e
