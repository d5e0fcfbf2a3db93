// The commands of the client.
#pragma once

#include <functional>
#include <string>

#include "clients/cpp/options.h"
#include "clients/cpp/rpc.h"

namespace polysketch {

struct CommandLine {
  CLI::App* app = nullptr;
  CallOptions call;
  std::function<int()> run;  // the command in the arguments, after parsing. Returns the exit status
};

// Adds a command that calls the server to `parent`, which is line->app or a command of it.
CLI::App* AddCallCommand(CLI::App* parent, const std::string& name, const std::string& description,
                         CommandLine* line, std::function<int()> run,
                         const std::string& footer = "");

// Each adds its commands to *line, which outlives them.
void AddComplete(CommandLine* line);
void AddChat(CommandLine* line);
void AddBatch(CommandLine* line);
void AddSession(CommandLine* line);
void AddScore(CommandLine* line);
void AddTokenize(CommandLine* line);
void AddDetokenize(CommandLine* line);
void AddInfo(CommandLine* line);
void AddHealth(CommandLine* line);

}  // namespace polysketch
