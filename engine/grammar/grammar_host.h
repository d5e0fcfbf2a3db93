// The process polysketch-grammar-host (host_protocol.h), as the server sees it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/status.h"

namespace polysketch {

// UNAVAILABLE: a grammar's process has ended by something else than a limit: a limit of another
// sequence of the grammar, the container's memory, a crash, a drain.
Status GrammarProcessEnded();

// Two connected sockets, which hold the messages of the largest source and the answers of several
// jobs. RESOURCE_EXHAUSTED without descriptors.
Result<std::pair<Descriptor, Descriptor>> SocketPair();

// Used by one thread at a time.
class GrammarHost {
 public:
  // `program`: path of polysketch-grammar-host. `input`: of its standard input (HostHeader).
  GrammarHost(std::string program, std::string input)
      : program_(std::move(program)), input_(std::move(input)) {}
  ~GrammarHost() { Stop(); }
  GrammarHost(const GrammarHost&) = delete;
  GrammarHost& operator=(const GrammarHost&) = delete;

  // Forks a worker and returns its grammar socket. Starts the host if it does not run.
  // UNAVAILABLE if there is no such program, FAILED_PRECONDITION if it ends at once,
  // RESOURCE_EXHAUSTED without descriptors.
  Result<Descriptor> StartWorker();
  // Ends the host and its workers; StartWorker starts it again.
  void Stop();

 private:
  Status Start();

  const std::string program_;
  const std::string input_;
  pid_t pid_ = -1;
  Descriptor control_;
};

}  // namespace polysketch
