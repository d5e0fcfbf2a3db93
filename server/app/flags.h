// The table of flags, from which parsing, --help, environment variables and the keys of the
// configuration file are derived. docs/operations.md says how to choose values.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "server/app/server_config.h"

namespace polysketch {

enum class FlagKind {
  kText,
  kAddress,   // text; a port alone is one of the loopback address
  kHosts,     // text: a list of ParseHostList
  kOrigins,   // text: a list of ParseOriginList
  kChoice,    // one of the words in Flag::values, separated by |
  kInteger,   // in [min, max]
  kBytes,     // an integer, optionally followed by KiB, MiB, GiB or TiB
  kDuration,  // an integer followed by ms, s, m or h; 0 needs no unit
  kSwitch,    // true or false; on the command line the name alone means true
};

struct Flag {
  std::string_view name;  // without the leading dashes: "max-queue"
  FlagKind kind;
  std::string_view values;  // placeholder in --help ("N", "HOST:PORT"), or the choices
  std::variant<std::string ServerConfig::*, int64_t ServerConfig::*,
               std::chrono::milliseconds ServerConfig::*, bool ServerConfig::*>
      field;
  int64_t min;  // of kInteger, kBytes and, in milliseconds, kDuration
  int64_t max;
  std::string_view help;
};

std::span<const Flag> Flags();
// nullptr for an unknown name.
const Flag* FindFlag(std::string_view name);

// Parses `text` and checks its range. The error says what was expected and what was found; the
// caller adds where the text comes from.
Status SetFlag(const Flag& flag, std::string_view text, ServerConfig* config);
// The value of the field, in the form that SetFlag parses.
std::string FlagText(const Flag& flag, const ServerConfig& config);
// "POLYSKETCH_MAX_QUEUE".
std::string EnvironmentName(std::string_view flag_name);
std::string HelpText();

// The values of --help-format.
inline constexpr std::string_view kHelpFormats = "man|bash";
// HelpText as a man page, or as a completion script of bash. INVALID_ARGUMENT for another format.
Result<std::string> FormattedHelp(std::string_view format, const std::string& version);

}  // namespace polysketch
