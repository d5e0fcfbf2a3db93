// polysketch: the command-line client of a PolySketch server.
#include <cstdio>
#include <cstdlib>

#include "base/standard_descriptors.h"
#include "clients/cpp/commands.h"
#include "polysketch_build_info.h"

namespace polysketch {
namespace {

const Program kProgram = {
    .name = "polysketch",
    .version = kVersionAndCommit,
    .description = "Command-line client of a PolySketch server. help COMMAND describes a command.",
    .footer =
        "Exit status: 0 success; 1 no connection to the server, or an error from it; 2 bad "
        "command\n"
        "line or input; 130 interrupted."};

int Main(int argc, char** argv) {
  SilenceGrpc();
  CommandLine line;
  const auto add_commands = [&line](CLI::App* app) {
    line.app = app;
    AddConnectionOptions(app, &line.call.connection);
    for (const auto add : {AddChat, AddComplete, AddBatch, AddSession, AddScore, AddTokenize,
                           AddDetokenize, AddInfo, AddHealth}) {
      add(&line);
    }
  };
  const auto exit_code = ParseCommandLine(argc, argv, kProgram, add_commands);
  if (exit_code) return *exit_code;
  WarnOfUnknownVariables(kProgram.name);
  const Status status = ResolveConnection(std::getenv, &line.call.connection);
  return status.ok() ? line.run() : ReportUsageError(status);
}

void AddMetadata(CLI::App* command, const char* name, const char* help, std::string* target) {
  AddOption(command, name, "ID", help, [target](const std::string& text) {
    *target = text;
    return CheckMetadata(text);
  });
}

}  // namespace

CLI::App* AddCallCommand(CLI::App* parent, const std::string& name, const std::string& description,
                         CommandLine* line, std::function<int()> run, const std::string& footer) {
  CLI::App* const command = AddCommand(
      parent, name, description, [line, run = std::move(run)] { line->run = run; }, footer);
  CallOptions& call = line->call;
  SetOptionGroup(command, "Call options");
  AddConnectionOptions(command, &call.connection);
  AddMetadata(command, "--request-id", "Id of the request in the server log (x-request-id).",
              &call.request_id);
  AddMetadata(command, "--tenant", "Tenant (x-tenant-id), the owner of sessions.", &call.tenant);
  AddNumber(command, "--timeout", "SECONDS", "Deadline of the call. 0: none.", 0, 1e9,
            &call.timeout);
  AddFlag(command, "--json", "Prints the result as one JSON object.", &call.json);
  SetOptionGroup(command, "Options");
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
