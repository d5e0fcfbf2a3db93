// Reads the ServerConfig from the program's arguments, the environment and a file.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/app/server_config.h"

namespace polysketch {

enum class CommandAction { kServe, kHelp, kFormattedHelp, kVersion };

struct CommandLine {
  CommandAction action = CommandAction::kServe;
  ServerConfig config;
  std::string help_format;  // of kFormattedHelp
};

// Like std::getenv: returns nullptr for a variable that is not set.
using EnvironmentLookup = std::function<const char*(const char*)>;

// `args`: without the program's name. INVALID_ARGUMENT names the flag, variable or key of the file
// that is wrong, what was expected and what was found. NOT_FOUND: the file cannot be read.
Result<CommandLine> LoadConfig(std::span<const char* const> args,
                               const EnvironmentLookup& environment);

// Returns a warning for each variable POLYSKETCH_* that no program reads. `environment`: as
// environ.
std::vector<std::string> EnvironmentWarnings(const char* const* environment);

}  // namespace polysketch
