#include "engine/grammar_host/worker_limits.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "engine/grammar/sockets.h"

namespace polysketch::grammar_host {
namespace {

// Of processor time. A worker takes a few megabytes from the kernel within it at most.
constexpr int kTickUs = 4'000;

struct Answer {
  std::array<std::byte, 16> bytes;
  size_t size = 0;

  void Set(std::span<const std::byte> answer) {
    size = std::min(answer.size(), bytes.size());
    std::copy_n(answer.begin(), size, bytes.begin());
  }
};

// Read by signal handlers. The work's part is set before `working`.
struct {
  int grammar_socket = -1;
  WorkerMemory* memory = nullptr;
  volatile sig_atomic_t working = 0;
  int64_t deadline_ns = 0;  // of processor time
  int socket = -1;
  Answer exceeded;
  Answer no_room;
} limits;

int64_t ProcessorTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

[[noreturn]] void End(const Answer& answer) {
  if (limits.socket != limits.grammar_socket) shutdown(limits.grammar_socket, SHUT_RDWR);
  if (limits.working != 0)
    SendMessage(limits.socket, std::span(answer.bytes).first(answer.size), MSG_DONTWAIT);
  _exit(1);
}

void OnTick(int /*signal*/) {
  const int error = errno;
  limits.memory->Note();
  if (limits.working != 0 && ProcessorTime() >= limits.deadline_ns) Exceed();
  errno = error;
}

void OnEnd(int /*signal*/) { End(limits.no_room); }

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void StartLimits(int grammar_socket, WorkerMemory* memory) {
  limits.grammar_socket = grammar_socket;
  limits.memory = memory;
  Handle(kEndSignal, OnEnd);
  Handle(SIGPROF, OnTick);
  constexpr timeval kTick{.tv_sec = 0, .tv_usec = kTickUs};
  const itimerval timer{.it_interval = kTick, .it_value = kTick};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void BeginLimit(const WorkLimit& limit) {
  limits.deadline_ns = ProcessorTime() + int64_t{limit.ms} * 1'000'000;
  limits.socket = limit.socket;
  limits.exceeded.Set(limit.exceeded);
  limits.no_room.Set(limit.no_room);
  limits.working = 1;
}

void EndLimit() { limits.working = 0; }

void Exceed() { End(limits.exceeded); }

}  // namespace polysketch::grammar_host
