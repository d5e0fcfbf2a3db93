// polysketch-grammar-host: compiles grammars and computes token masks for polysketch-server, which
// starts it (host_protocol.h). It is not started by hand.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/host_protocol.h"
#include "engine/grammar/sockets.h"
#include "engine/grammar_host/worker.h"
#include "engine/grammar_host/worker_memory.h"

namespace polysketch::grammar_host {
namespace {

bool ReadExactly(void* to, size_t size) { return std::fread(to, 1, size, stdin) == size; }

std::optional<xgrammar::TokenizerInfo> ReadVocabulary(HostHeader* header) {
  if (!ReadExactly(header, sizeof(*header)) || header->vocab_size <= 0 || header->eos_count < 0)
    return std::nullopt;
  std::vector<int32_t> eos_ids(static_cast<size_t>(header->eos_count));
  if (!ReadExactly(eos_ids.data(), eos_ids.size() * sizeof(int32_t))) return std::nullopt;
  std::vector<std::string> tokens(static_cast<size_t>(header->vocab_size));
  for (std::string& token : tokens) {
    uint32_t size = 0;
    if (!ReadExactly(&size, sizeof(size))) return std::nullopt;
    token.resize(size);
    if (!ReadExactly(token.data(), size)) return std::nullopt;
  }
  return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, header->vocab_size, eos_ids);
}

// The child of a fork: ends with the host, and may hold memory_bytes of data.
void LimitWorker(pid_t host, size_t memory_bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != host) _exit(1);
  const rlimit memory{.rlim_cur = memory_bytes, .rlim_max = memory_bytes};
  setrlimit(RLIMIT_DATA, &memory);
  constexpr rlimit kNone{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &kNone);
  // Where the machine is short of memory, the kernel ends this process and not the server.
  if (std::FILE* file = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

// Waits for a descriptor on the control socket. Ends workers meanwhile that hold too much.
Descriptor NextSocket(WorkerMemory* memory) {
  while (true) {
    memory->Reap();
    std::array<pollfd, 2> polled = {{{.fd = kControlDescriptor, .events = POLLIN, .revents = 0},
                                     {.fd = memory->pressure(), .events = POLLIN, .revents = 0}}};
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[1].revents != 0) memory->Relieve();
    if (polled[0].revents != 0) return ReceiveDescriptor(kControlDescriptor);
  }
}

int Run() {
  // Of the terminal, or of GNU's `timeout`, to the process group: the server drains first.
  for (const int of_group : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) signal(of_group, SIG_IGN);
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(SIGCHLD, &wake, nullptr);  // a worker that ends interrupts poll
  HostHeader header;
  const std::optional<xgrammar::TokenizerInfo> vocabulary = ReadVocabulary(&header);
  if (!vocabulary) {
    std::fprintf(
        stderr,
        "%s: expected a vocabulary on standard input: polysketch-server starts this program\n",
        kProgram);
    return 2;
  }
  const pid_t host = getpid();
  WorkerMemory memory(static_cast<int64_t>(header.total_bytes));
  if (!memory.ok()) return 1;
  while (true) {
    const Descriptor socket = NextSocket(&memory);
    if (!socket.ok()) return 0;
    if (memory.Fork() != 0) continue;
    close(kControlDescriptor);
    LimitWorker(host, header.memory_bytes);
    RunWorker(socket.get(), *vocabulary, header, &memory);
    _exit(0);
  }
}

}  // namespace
}  // namespace polysketch::grammar_host

int main() { return polysketch::grammar_host::Run(); }
