// The one table of flags: parsing, --help, environment variables and the file's keys all come from
// it.
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
  kChoice,    // one of the words in Flag::values, separated by |
  kInteger,   // in [min, max]
  kBytes,     // an integer, or one with KiB, MiB or GiB behind it
  kDuration,  // an integer with ms, s, m or h behind it; 0 needs no unit
};

struct Flag {
  std::string_view name;  // without the dashes: "max-queue"
  FlagKind kind;
  std::string_view values;  // placeholder in --help ("N", "HOST:PORT"), or the choices
  std::variant<std::string ServerConfig::*, int64_t ServerConfig::*,
               std::chrono::milliseconds ServerConfig::*>
      field;
  int64_t min;  // kInteger, kBytes; milliseconds for kDuration
  int64_t max;
  std::string_view help;
};

std::span<const Flag> Flags();
// nullptr when there is none of this name. Old names (RenamedFlags) are not found.
const Flag* FindFlag(std::string_view name);

// A flag whose former name is still understood, for one version, with a warning.
struct RenamedFlag {
  std::string_view old_name;
  std::string_view name;
};
std::span<const RenamedFlag> RenamedFlags();
// Parses and range-checks. The error says what was expected and found, not where the text came
// from.
Status SetFlag(const Flag& flag, std::string_view text, ServerConfig* config);
// The field's value in the form that SetFlag reads.
std::string FlagText(const Flag& flag, const ServerConfig& config);
// "POLYSKETCH_MAX_QUEUE".
std::string EnvironmentName(std::string_view flag_name);
std::string HelpText();

}  // namespace polysketch
