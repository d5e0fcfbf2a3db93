// The process of one grammar (host_protocol.h).
#pragma once

#include <xgrammar/xgrammar.h>

#include "engine/grammar/host_protocol.h"
#include "engine/grammar_host/worker_memory.h"

namespace polysketch::grammar_host {

// Compiles the source that arrives on `grammar_socket` and serves its walks. Returns when the
// socket closes. `memory`: of the host, for the memory of all workers.
void RunWorker(int grammar_socket, const xgrammar::TokenizerInfo& vocabulary,
               const HostHeader& limits, WorkerMemory* memory);

}  // namespace polysketch::grammar_host
