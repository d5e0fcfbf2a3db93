// The help of the programs, as text, man page and completion, and the environment variables that
// they warn of.
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using Strings = std::vector<std::string>;

ProcessResult RunProgram(const std::string& program, Strings arguments,
                         std::vector<std::pair<std::string, std::string>> environment = {}) {
  arguments.insert(arguments.begin(), Binary(program));
  return RunProcess({.arguments = std::move(arguments), .environment = std::move(environment)});
}

std::string Output(const std::string& program, const Strings& arguments) {
  const ProcessResult result = RunProgram(program, arguments);
  EXPECT_EQ(result.exit_status, 0) << program << result.standard_error;
  EXPECT_EQ(result.standard_error, "");
  return result.standard_output;
}

// Words of a text that begin with --.
std::set<std::string> OptionsOf(const std::string& text) {
  std::set<std::string> options;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find("--");
    // An option begins its line, a description has a deeper one.
    if (!line.starts_with("  ") || line.starts_with("   ") || name == line.npos || name > 6)
      continue;
    options.insert(line.substr(name, line.find_first_of(" =,", name) - name));
  }
  return options;
}

// Paths of the commands below a command, with the command itself.
std::vector<Strings> CommandsOf(const std::string& program, const Strings& path = {}) {
  std::vector<Strings> commands = {path};
  Strings arguments = path;
  arguments.push_back("--help");
  const std::string help = Output(program, arguments);
  const size_t list = help.find("\nCommands:\n");
  if (list == help.npos) return commands;
  std::istringstream lines(help.substr(list + 11));
  for (std::string line; std::getline(lines, line) && line.starts_with("  ");) {
    if (line[2] == ' ') continue;  // a description that continues
    Strings child = path;
    child.push_back(line.substr(2, line.find(' ', 2) - 2));
    for (const Strings& command : CommandsOf(program, child)) commands.push_back(command);
  }
  return commands;
}

std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

TEST(Help, EveryOptionIsInTheManPageAndTheCompletion) {
  size_t options = 0;
  for (const std::string program : {"polysketch", "polysketch-loadgen", "polysketch-server"}) {
    const std::string man = Output(program, {"--help-format", "man"});
    const std::string bash = Output(program, {"--help-format", "bash"});
    for (const Strings& command : CommandsOf(program)) {
      std::string name;
      Strings arguments = command;
      for (const std::string& word : command) name += (name.empty() ? "" : " ") + word;
      arguments.push_back("--help");
      // The section of the command, to the next one.
      size_t section = man.find(".SH OPTIONS\n");
      if (!command.empty()) {
        section = man.find(".SS \"" + Replaced(name, "-", "\\-") + "\"\n");
        ASSERT_NE(section, man.npos) << name;
      }
      const std::string text =
          Replaced(man.substr(section, man.find("\n.S", section) - section), "\\-", "-");
      const size_t words = bash.find("    '" + (name.empty() ? "" : " " + name) + "') words=");
      ASSERT_NE(words, bash.npos) << program << " " << name;
      const std::string offered =
          " " + Replaced(bash.substr(words, bash.find("' ;;", words) - words), "='", " ") + " ";
      for (const std::string& option : OptionsOf(Output(program, arguments))) {
        EXPECT_NE(text.find(option), text.npos) << program << " " << name << " " << option;
        EXPECT_NE(offered.find(" " + option + " "), offered.npos)
            << program << " " << name << " " << option;
        ++options;
      }
    }
  }
  EXPECT_GT(options, 200u);
}

TEST(Help, TheFormatsAreWellFormed) {
  for (const std::string program : {"polysketch", "polysketch-loadgen", "polysketch-server"}) {
    const ProcessResult bash =
        RunProcess({.arguments = {"/bin/bash", "-n"},
                    .standard_input = Output(program, {"--help-format", "bash"})});
    EXPECT_EQ(bash.exit_status, 0) << bash.standard_error;
    if (!std::filesystem::exists("/usr/bin/groff")) continue;
    const ProcessResult groff =
        RunProcess({.arguments = {"/usr/bin/groff", "-man", "-Tascii", "-ww", "-z"},
                    .standard_input = Output(program, {"--help-format", "man"})});
    EXPECT_EQ(groff.exit_status, 0);
    EXPECT_EQ(groff.standard_error, "") << program;
  }
}

TEST(Help, TheCommandHelpIsTheOptionHelp) {
  for (const Strings& command : CommandsOf("polysketch")) {
    Strings with_option = command;
    with_option.push_back("--help");
    Strings with_command = command;
    with_command.insert(with_command.begin(), "help");
    EXPECT_EQ(Output("polysketch", with_command), Output("polysketch", with_option));
  }
  const ProcessResult unknown = RunProgram("polysketch", {"help", "session", "frob"});
  EXPECT_EQ(unknown.exit_status, 2);
  EXPECT_EQ(
      unknown.standard_error,
      "polysketch: help: expected a command of polysketch session, found 'frob' (see --help)\n");
}

// The client's image may be the server's: it knows all variables of the server.
TEST(Environment, UnknownVariablesAreWarnedOf) {
  std::vector<std::pair<std::string, std::string>> environment = {{"POLYSKETCH_CONFIG", ""}};
  const std::set<std::string> flags = OptionsOf(Output("polysketch-server", {"--help"}));
  for (const std::string& flag : flags) {
    if (flag == "--help" || flag == "--version" || flag == "--help-format") continue;
    std::string name = Replaced(flag.substr(2), "-", "_");
    for (char& c : name) c = static_cast<char>(std::toupper(c));
    environment.emplace_back("POLYSKETCH_" + name, "1");
  }
  EXPECT_GT(environment.size(), 40u);
  const auto warnings = [&](const std::string& program) {
    return RunProgram(program, {"--server", "127.0.0.1:1", "info"}, environment).standard_error;
  };
  EXPECT_EQ(warnings("polysketch").find("warning"), std::string::npos) << warnings("polysketch");
  environment.emplace_back("POLYSKETCH_TENANT", "acme");
  EXPECT_TRUE(warnings("polysketch")
                  .starts_with("polysketch: warning: the environment variable POLYSKETCH_TENANT is "
                               "not known and has no effect\n"))
      << warnings("polysketch");
  const ProcessResult load =
      RunProgram("polysketch-loadgen", {"--server", "127.0.0.1:1"}, environment);
  EXPECT_TRUE(load.standard_error.starts_with("polysketch-loadgen: warning: "))
      << load.standard_error;

  Server server({.environment = {{"POLYSKETCH_MAX_QEUE", "3"}, {"POLYSKETCH_SERVER", "x"}}});
  EXPECT_TRUE(server.Logs("POLYSKETCH_MAX_QEUE is not known and has no effect"));
  const std::string log = server.process().StandardError();
  EXPECT_EQ(log.find("POLYSKETCH_SERVER"), std::string::npos) << log;
}

// A descriptor that a library opened would take the place of one that the parent process closed:
// the client would wait for it, and what the server logs would go to it.
TEST(StandardDescriptors, ClosedOnesAreNull) {
  const auto started = [](const std::string& shell, const std::string& program) {
    return ProcessOptions{.arguments = {"/bin/sh", "-c", shell, Binary(program)}};
  };
  const ProcessResult client = RunProcess(started("exec \"$0\" complete <&-", "polysketch"));
  EXPECT_EQ(client.exit_status, 2);
  EXPECT_NE(client.standard_error.find("found none"), std::string::npos) << client.standard_error;

  const std::string flags = " --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --model ";
  Process server(started("exec \"$0\"" + flags + DemoModel() + " <&- 2>&-", "polysketch-server"));
  ASSERT_TRUE(WaitUntil([&] { return !server.StandardOutput().empty(); }));
  for (const char* descriptor : {"0", "2"}) {
    const auto link = "/proc/" + std::to_string(server.pid()) + "/fd/" + descriptor;
    EXPECT_EQ(std::filesystem::read_symlink(link), "/dev/null");
  }
}

}  // namespace
}  // namespace polysketch::e2e
