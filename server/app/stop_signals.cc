#include "server/app/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <thread>

#include "base/check.h"
#include "base/logging.h"

namespace polysketch {

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  PS_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout or connection is an error code, not an end
  std::thread([this] { Loop(); }).detach();
}

int StopSignals::Wait() {
  std::unique_lock lock(mutex_);
  waiting_ = true;
  arrived_.wait(lock, [this] { return first_ != 0; });
  return first_;
}

void StopSignals::Loop() {
  while (true) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    std::lock_guard lock(mutex_);
    if (first_ != 0) {
      LogWarning("stopped", {{"signal", signal}, {"reason", "second signal"}});
      _exit(128 + signal);
    }
    if (!waiting_) {
      LogInfo("stopped", {{"signal", signal}, {"reason", "not serving yet"}});
      _exit(0);
    }
    first_ = signal;
    arrived_.notify_all();
  }
}

}  // namespace polysketch
