#include "base/log_writer.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/start_thread.h"

namespace polysketch {
namespace {

// A log line that cannot be written has nowhere to be reported.
void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

struct LogWriter::Shared {
  Shared(int fd, size_t limit, std::string (*dropped_line)(uint64_t count))
      : fd(fd), limit(limit), dropped_line(dropped_line) {}

  const int fd;
  const size_t limit;
  std::string (*const dropped_line)(uint64_t count);
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex:
  std::string buffer;
  bool writing = false;
  uint64_t dropped = 0;
  uint64_t reported = 0;  // of `dropped`

  [[noreturn]] void Loop() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !buffer.empty() || dropped > reported; });
      std::string bytes = std::exchange(buffer, std::string());
      const uint64_t unreported = dropped - std::exchange(reported, dropped);
      writing = true;
      lock.unlock();
      if (unreported > 0) bytes += dropped_line(unreported);
      WriteAll(fd, bytes);
      lock.lock();
      writing = false;
      changed.notify_all();
    }
  }
};

LogWriter::LogWriter(int fd, size_t limit, std::string (*dropped_line)(uint64_t count))
    : shared_(std::make_shared<Shared>(fd, limit, dropped_line)) {
  // The thread takes no signals: the program may not have blocked those that it waits for yet.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  StartThread([shared = shared_] { shared->Loop(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LogWriter::Write(std::string_view line) {
  {
    std::lock_guard lock(shared_->mutex);
    if (shared_->buffer.size() + line.size() > shared_->limit) {
      ++shared_->dropped;
      return;
    }
    shared_->buffer += line;
  }
  shared_->changed.notify_all();
}

bool LogWriter::Flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, patience,
                                   [this] { return shared_->buffer.empty() && !shared_->writing; });
}

uint64_t LogWriter::dropped() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->dropped;
}

}  // namespace polysketch
