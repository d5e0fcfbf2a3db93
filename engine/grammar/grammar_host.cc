#include "engine/grammar/grammar_host.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "engine/grammar/host_protocol.h"
#include "engine/grammar/sockets.h"

namespace polysketch {
namespace {

// A file in memory that holds `bytes`, read from its beginning.
Result<Descriptor> MemoryFile(const std::string& bytes) {
  Descriptor file(memfd_create("polysketch-vocabulary", MFD_CLOEXEC));
  const bool written = file.get() >= 0 &&
                       write(file.get(), bytes.data(), bytes.size()) == std::ssize(bytes) &&
                       lseek(file.get(), 0, SEEK_SET) == 0;
  if (!written)
    return ResourceExhausted("structured_output: no memory file: ", std::strerror(errno));
  return file;
}

}  // namespace

Status GrammarProcessEnded() {
  return Unavailable("structured_output: the grammar's process has ended; try again later");
}

Result<std::pair<Descriptor, Descriptor>> SocketPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return ResourceExhausted("structured_output: no socket: ", std::strerror(errno));
  // Of messages that meet a full queue: the engine thread passes walks to a process that is busy.
  constexpr timeval kPatience{.tv_sec = 0, .tv_usec = 100'000};
  setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  return std::pair(Descriptor(ends[0]), Descriptor(ends[1]));
}

Result<Descriptor> GrammarHost::StartWorker() {
  // A host that has ended is started again.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (pid_ < 0) PS_RETURN_IF_ERROR(Start());
    PS_ASSIGN_OR_RETURN(auto ends, SocketPair());
    if (grammar_host::SendDescriptor(control_.get(), ends.second.get()))
      return std::move(ends.first);
    Stop();
  }
  return FailedPrecondition("structured_output: ", program_, " ended when it was started");
}

Status GrammarHost::Start() {
  PS_ASSIGN_OR_RETURN(const Descriptor input, MemoryFile(input_));
  PS_ASSIGN_OR_RETURN(auto ends, SocketPair());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends.second.get(), grammar_host::kControlDescriptor);
  // Descriptors of the server that are not closed by exec: sockets of clients would stay open.
  posix_spawn_file_actions_addclosefrom_np(&actions, grammar_host::kControlDescriptor + 1);
  // The server blocks the signals that it waits for.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  char* const argv[] = {const_cast<char*>(program_.c_str()), nullptr};
  const int error = posix_spawn(&pid_, program_.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = -1;
    return Unavailable("structured_output: expected the program ", program_,
                       " beside the server: ", std::strerror(error));
  }
  control_ = std::move(ends.first);
  return Status();
}

void GrammarHost::Stop() {
  if (pid_ < 0) return;
  control_ = Descriptor();
  kill(pid_, SIGKILL);  // its workers end with it
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

}  // namespace polysketch
