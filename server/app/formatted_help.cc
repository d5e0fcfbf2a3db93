#include "base/program_help.h"
#include "server/app/flags.h"

namespace polysketch {
namespace {

constexpr char kDescription[] = "Serves a PolySketchFormer model over gRPC.";
constexpr char kFooter[] =
    R"(A flag is also an environment variable (POLYSKETCH_MAX_QUEUE) and a key of the JSON object in the
file that --config names. A flag overrides the variable, and the variable overrides the key.
SIGTERM and SIGINT drain: running requests end within --drain-timeout. A second signal ends the
process at once.)";

CommandHelp DescribeFlags() {
  CommandHelp help = {.name = "polysketch-server",
                      .description = kDescription,
                      .footer = kFooter,
                      .options = {},
                      .commands = {}};
  const ServerConfig defaults;
  for (const Flag& flag : Flags()) {
    help.options.push_back({.names = {StrCat("--", flag.name)},
                            .value = std::string(flag.values),
                            .help = std::string(flag.help),
                            .initial = FlagText(flag, defaults)});
  }
  help.options.push_back({{"--config"}, "FILE", "JSON object of flag names and values.", ""});
  help.options.push_back({{"-h", "--help"}, "", "prints the flags.", ""});
  help.options.push_back({{"--help-format"},
                          std::string(kHelpFormats),
                          "prints the flags as a man page or as a completion script of bash.",
                          ""});
  help.options.push_back({{"--version"}, "", "prints the version, the commit and the build.", ""});
  return help;
}

}  // namespace

Result<std::string> FormattedHelp(std::string_view format, const std::string& version) {
  if (format == "man") return ManPage(DescribeFlags(), version);
  if (format == "bash") return BashCompletion(DescribeFlags());
  return InvalidArgument("--help-format: expected ", kHelpFormats, ", found \"", format, "\"");
}

}  // namespace polysketch
