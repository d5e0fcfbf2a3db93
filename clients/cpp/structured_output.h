// Options of `polysketch complete` that constrain its output.
#pragma once

#include <CLI/CLI.hpp>

#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

// Adds --json-schema, --json-object, --regex, --grammar, --choice and --compact-json, which set the
// structured_output of `request`.
void AddStructuredOutput(CLI::App* command, v1::CompleteRequest* request);

}  // namespace polysketch
