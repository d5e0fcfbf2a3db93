// polysketch: the command-line client of a PolySketch server.
#include <cstdio>
#include <iostream>

#include "clients/cpp/commands.h"
#include "polysketch_build_info.h"

namespace polysketch {
namespace {

int Main(int argc, char** argv) {
  CommandLine line;
  line.call.server = DefaultServer();
  CLI::App& app = line.app;
  Configure(&app, "polysketch", POLYSKETCH_VERSION " (" POLYSKETCH_COMMIT ")");
  app.description(
      "Command-line client of a PolySketch server. COMMAND --help describes a command.");
  app.footer(
      "Exit status: 0 success; 1 no connection to the server, or an error from it; 2 bad command\n"
      "line or input; 130 interrupted.");
  AddServerOption(&app, &line.call.server);
  for (const auto add :
       {AddComplete, AddSession, AddScore, AddTokenize, AddDetokenize, AddInfo, AddHealth}) {
    add(&line);
  }
  if (const auto exit_code = ParseCommandLine(argc, argv, &app)) return *exit_code;
  if (line.run) return line.run();
  std::cerr << app.help();  // of the session command, if that is what the arguments name
  return kExitUsage;
}

}  // namespace

CLI::App* AddCommand(CLI::App* parent, const std::string& name, const std::string& description,
                     CommandLine* line, std::function<int()> run) {
  CLI::App* const command = parent->add_subcommand(name, description);
  command->group("Commands");
  command->callback([line, run = std::move(run)] { line->run = run; });
  CallOptions& call = line->call;
  command->option_defaults()->group("Call options");
  AddServerOption(command, &call.server);
  AddOption(command, "--request-id", "ID", "Id of the request in the server log (x-request-id).",
            &call.request_id);
  AddOption(command, "--tenant", "ID", "Tenant (x-tenant-id), the owner of sessions.",
            &call.tenant);
  AddOption(command, "--timeout", "SECONDS", "Deadline of the call. 0: none.", &call.timeout)
      ->check(CLI::Range(0.0, 1e9));
  command->add_flag("--json", call.json, "Prints the result as one JSON object.");
  command->option_defaults()->group("Options");
  return command;
}

}  // namespace polysketch

int main(int argc, char** argv) {
  const int code = polysketch::Main(argc, argv);
  // A full disk must not look like success. Text is flushed as it arrives, so the error may be an
  // earlier one.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && code == polysketch::kExitOk) {
    std::fputs("polysketch: the output could not be written\n", stderr);
    return polysketch::kExitFailed;
  }
  return code;
}
