// The limits of a worker: of its processor time, and of the memory of all workers. Signals end the
// process, whatever xgrammar does then, after an answer to the one that it works for.
#pragma once

#include <cstddef>
#include <span>

#include "engine/grammar_host/worker_memory.h"

namespace polysketch::grammar_host {

// Begins to note memory. Called once; both outlive the process's work. `grammar_socket` closes
// before an answer to another socket, so that its reader, which compiles the grammar again, does
// not find this process.
void StartLimits(int grammar_socket, WorkerMemory* memory);

// Of one piece of work.
struct WorkLimit {
  int ms;      // of processor time
  int socket;  // that the work is for
  // What `socket` gets if the process exceeds a limit, or has to end because of all workers; at
  // most 16 bytes each.
  std::span<const std::byte> exceeded;
  std::span<const std::byte> no_room;
};
void BeginLimit(const WorkLimit& limit);
void EndLimit();
// Between the two: answers that a limit was exceeded, and ends the process. Async-signal-safe.
[[noreturn]] void Exceed();

}  // namespace polysketch::grammar_host
