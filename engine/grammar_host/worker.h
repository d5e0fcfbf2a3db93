// The process of one grammar (host_protocol.h).
#pragma once

#include <xgrammar/xgrammar.h>

#include "engine/grammar/host_protocol.h"

namespace polysketch::grammar_host {

// Compiles the source that arrives on `grammar_socket` and serves its walks. Returns when the
// socket closes.
void RunWorker(int grammar_socket, const xgrammar::TokenizerInfo& vocabulary,
               const HostHeader& limits);

}  // namespace polysketch::grammar_host
