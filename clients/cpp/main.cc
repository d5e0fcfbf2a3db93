// polysketch: the command-line client of a PolySketch server.
#include <cstdio>
#include <iostream>

#include "clients/cpp/commands.h"
#include "polysketch_build_info.h"

namespace polysketch {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(Arguments, CallOptions);
};

constexpr Command kCommands[] = {
    {"complete", "continues a prompt; the text appears as it is generated", RunComplete},
    {"session", "sequences that wait on the server for their next request", RunSession},
    {"score", "perplexity and log-probabilities of a text of any length", RunScore},
    {"tokenize", "token ids of a text", RunTokenize},
    {"detokenize", "text of token ids", RunDetokenize},
    {"info", "what the server serves, and its limits", RunInfo},
    {"health", "whether the server is ready", RunHealth},
};

std::string CommandList() {
  std::string list = "Commands (polysketch COMMAND --help says more):\n";
  for (const Command& command : kCommands) {
    const std::string name = command.name;
    list += "  " + name + std::string(12 - name.size(), ' ') + command.summary + "\n";
  }
  return list +
         "\nExit status: 0 success; 1 the server could not be reached or answered with an error;\n"
         "2 the command line or its input is wrong; 130 ended by Ctrl-C.\n";
}

int Main(Arguments args) {
  CallOptions call;
  bool help = false;
  bool version = false;
  call.server = DefaultServer();
  Options options("[--server HOST:PORT] COMMAND [options]",
                  "Talks to a PolySketch server (default " + call.server +
                      ", or what POLYSKETCH_SERVER says).");
  options.Value("--server", "HOST:PORT", "the server's address", &call.server);
  options.Switch("--version", "print the version", &version);
  options.Switch("--help", "print this", &help);
  options.Footer(CommandList());

  if (const Status status = options.Parse(&args); !status.ok()) return ReportUsageError(status);
  if (version) {
    std::cout << "polysketch " << POLYSKETCH_VERSION << " (" << POLYSKETCH_COMMIT << ")\n";
    return kExitOk;
  }
  if (help) {
    std::cout << options.Help();
    return kExitOk;
  }
  if (args.empty()) {
    std::cerr << options.Help();
    return kExitUsage;
  }
  const std::string name = args.front();
  args.pop_front();
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(std::move(args), std::move(call));
  }
  return ReportUsageError(
      InvalidArgument("there is no command ", name, "; polysketch --help lists them"));
}

}  // namespace

std::optional<ExitCode> ParseArguments(Options* options, CallOptions* call, Arguments* args) {
  bool help = false;
  call->AddTo(options);
  options->Switch("--help", "print this", &help);
  if (const Status status = options->Parse(args); !status.ok()) return ReportUsageError(status);
  if (help) {
    std::cout << options->Help();
    return kExitOk;
  }
  if (!args->empty()) {
    return ReportUsageError(InvalidArgument("unexpected argument '", args->front(), "'"));
  }
  if (!(call->timeout >= 0)) {
    return ReportUsageError(InvalidArgument("--timeout: expected seconds, found ", call->timeout));
  }
  return std::nullopt;
}

}  // namespace polysketch

int main(int argc, char** argv) {
  const int code = polysketch::Main(polysketch::Arguments(argv + 1, argv + argc));
  // A full disk must not look like success. What text arrives is flushed as it comes, so the error
  // may be an old one.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && code == polysketch::kExitOk) {
    std::fputs("polysketch: the output could not be written\n", stderr);
    return polysketch::kExitFailed;
  }
  return code;
}
