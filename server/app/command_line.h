// From the program's arguments, the environment and a file to a ServerConfig.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/app/server_config.h"

namespace polysketch {

enum class CommandAction { kServe, kHelp, kVersion };

struct CommandLine {
  CommandAction action = CommandAction::kServe;
  ServerConfig config;
  std::vector<std::string> warnings;  // what works and will not for long: former names of flags
};

// nullptr for a variable that is not set, as std::getenv.
using EnvironmentLookup = std::function<const char*(const char*)>;

// `args` without the program's name. INVALID_ARGUMENT says which flag, variable or key of the file
// is wrong, what was expected and what was found; NOT_FOUND when the file cannot be read.
Result<CommandLine> LoadConfig(std::span<const char* const> args,
                               const EnvironmentLookup& environment);

}  // namespace polysketch
