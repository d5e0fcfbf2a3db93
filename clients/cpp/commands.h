// The commands of the client. Each parses what stands behind its name, runs, and returns the
// process's exit code.
#pragma once

#include <optional>
#include <string>

#include "clients/cpp/options.h"
#include "clients/cpp/rpc.h"

namespace polysketch {

int RunComplete(Arguments args, CallOptions call);
int RunSession(Arguments args, CallOptions call);
int RunScore(Arguments args, CallOptions call);
int RunTokenize(Arguments args, CallOptions call);
int RunDetokenize(Arguments args, CallOptions call);
int RunInfo(Arguments args, CallOptions call);
int RunHealth(Arguments args, CallOptions call);

// Adds the options of every command to *options and parses. An exit code means that the command
// ends here: help was asked for and printed, or the arguments are wrong.
std::optional<ExitCode> ParseArguments(Options* options, CallOptions* call, Arguments* args);

}  // namespace polysketch
