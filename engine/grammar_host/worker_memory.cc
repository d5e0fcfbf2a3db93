#include "engine/grammar_host/worker_memory.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace polysketch::grammar_host {
namespace {

// The number that begins at *text, which then points after it.
int64_t TakeNumber(const char** text) {
  int64_t number = 0;
  while (**text == ' ') ++*text;
  for (; **text >= '0' && **text <= '9'; ++*text) number = 10 * number + (**text - '0');
  return number;
}

// Anonymous pages of the process whose /proc/PID/statm is `file`. Async-signal-safe.
int64_t AnonymousPages(int file) {
  char text[128];
  const ssize_t size = pread(file, text, sizeof(text) - 1, 0);
  text[std::max<ssize_t>(size, 0)] = '\0';
  const char* at = text;
  TakeNumber(&at);  // of the address space
  const int64_t resident = TakeNumber(&at);
  return resident - TakeNumber(&at);  // pages of files
}

}  // namespace

WorkerMemory::WorkerMemory(int64_t limit)
    : limit_(limit),
      page_bytes_(sysconf(_SC_PAGESIZE)),
      pressure_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  void* const page = mmap(nullptr, kMaxWorkers * sizeof(*held_), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) held_ = static_cast<std::atomic<int64_t>*>(page);  // zeros
}

pid_t WorkerMemory::Fork() {
  Reap();
  const auto free = std::find_if(workers_.begin(), workers_.end(),
                                 [](const Worker& worker) { return worker.pid == 0; });
  if (free == workers_.end()) return -1;
  const int index = static_cast<int>(free - workers_.begin());
  const pid_t pid = fork();
  if (pid > 0) *free = {.pid = pid};
  if (pid != 0) return pid;
  own_ = index;
  statm_ = Descriptor(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  inherited_ = AnonymousPages(statm_.get()) * page_bytes_;
  return 0;
}

void WorkerMemory::Reap() {
  while (true) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid <= 0) return;
    const auto ended = std::find_if(workers_.begin(), workers_.end(),
                                    [pid](const Worker& worker) { return worker.pid == pid; });
    if (ended == workers_.end()) continue;
    *ended = {};
    held_[ended - workers_.begin()].store(0, std::memory_order_relaxed);
  }
}

void WorkerMemory::Relieve() {
  eventfd_t count = 0;
  eventfd_read(pressure_.get(), &count);
  Reap();
  int64_t sum = 0;
  for (int i = 0; i < kMaxWorkers; ++i) sum += workers_[i].ending ? 0 : Held(i);
  while (sum > limit_) {
    int largest = -1;
    for (int i = 0; i < kMaxWorkers; ++i) {
      const bool candidate = workers_[i].pid != 0 && !workers_[i].ending;
      if (candidate && (largest < 0 || Held(i) > Held(largest))) largest = i;
    }
    if (largest < 0) return;
    sum -= Held(largest);
    workers_[largest].ending = true;
    kill(workers_[largest].pid, kEndSignal);
  }
}

void WorkerMemory::Note() {
  const int64_t held = AnonymousPages(statm_.get()) * page_bytes_ - inherited_;
  held_[own_].store(std::max<int64_t>(held, 0), std::memory_order_relaxed);
  int64_t sum = 0;
  for (int i = 0; i < kMaxWorkers; ++i) sum += Held(i);
  if (sum > limit_) eventfd_write(pressure_.get(), 1);
}

}  // namespace polysketch::grammar_host
