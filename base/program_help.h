// The options of a program as a man page and as a completion script of bash.
#pragma once

#include <string>
#include <vector>

namespace polysketch {

struct OptionHelp {
  std::vector<std::string> names;  // "-p", "--prompt"; empty: an argument without a name
  std::string value;               // its word in --help: "FILE", "auto|cpu"; empty: a flag
  std::string help;
  std::string initial;  // default; empty: none
};

struct CommandHelp {
  std::string name;
  std::string description;
  std::string footer;
  std::vector<OptionHelp> options;
  std::vector<CommandHelp> commands;
};

// Returns the page in the form of man(7), section 1. version: "0.1.0 (abc)".
std::string ManPage(const CommandHelp& program, const std::string& version);

// Returns a script that defines and registers a completion function. It completes commands,
// options, values that are words (auto|cpu), and the names of files where the value is FILE or DIR.
std::string BashCompletion(const CommandHelp& program);

}  // namespace polysketch
