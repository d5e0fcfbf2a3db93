// polysketch-grammar-host: compiles grammars and computes token masks for polysketch-server, which
// starts it (host_protocol.h). It is not started by hand.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

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

namespace polysketch::grammar_host {
namespace {

bool ReadExactly(void* to, size_t size) { return std::fread(to, 1, size, stdin) == size; }

std::optional<xgrammar::TokenizerInfo> ReadVocabulary(HostHeader* header) {
  if (!ReadExactly(header, sizeof(*header)) || header->vocab_size <= 0) return std::nullopt;
  std::vector<std::string> tokens(static_cast<size_t>(header->vocab_size));
  for (std::string& token : tokens) {
    uint32_t size = 0;
    if (!ReadExactly(&size, sizeof(size))) return std::nullopt;
    token.resize(size);
    if (!ReadExactly(token.data(), size)) return std::nullopt;
  }
  return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, header->vocab_size,
                                 std::vector<int32_t>{header->eos_id});
}

// The child of a fork: ends with the host, and may hold memory_bytes of data.
void LimitWorker(pid_t host, size_t memory_bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != host) _exit(1);
  const rlimit memory{.rlim_cur = memory_bytes, .rlim_max = memory_bytes};
  setrlimit(RLIMIT_DATA, &memory);
  constexpr rlimit kNone{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &kNone);
  // Where memory is short, the kernel ends this process and not the server.
  if (std::FILE* file = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

int Run() {
  signal(SIGINT, SIG_IGN);   // of the terminal: the server drains first
  signal(SIGCHLD, SIG_IGN);  // no child becomes a zombie
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
  while (true) {
    const Descriptor socket = ReceiveDescriptor(kControlDescriptor);
    if (!socket.ok()) return 0;
    if (fork() != 0) continue;
    close(kControlDescriptor);
    LimitWorker(host, header.memory_bytes);
    RunWorker(socket.get(), *vocabulary, header);
    _exit(0);
  }
}

}  // namespace
}  // namespace polysketch::grammar_host

int main() { return polysketch::grammar_host::Run(); }
