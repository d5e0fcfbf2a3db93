#include "server/app/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <thread>

#include "base/check.h"
#include "base/logging.h"
#include "base/start_thread.h"

namespace polysketch {

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGQUIT);
  PS_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
  // A closed stdout or connection, and a file beyond a limit, are error codes. No other program's
  // habit of signals ends the server.
  for (const int ignored : {SIGPIPE, SIGXFSZ, SIGHUP, SIGUSR1, SIGUSR2})
    std::signal(ignored, SIG_IGN);
  StartThread([this] { Loop(); }).detach();
}

void StopSignals::BeginServing() {
  std::lock_guard lock(mutex_);
  serving_ = true;
}

int StopSignals::Wait() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [this] { return first_ != 0; });
  return first_;
}

void StopSignals::Loop() {
  std::chrono::steady_clock::time_point first_time;
  while (true) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (signal == first_ && now < first_time + kRepeat) continue;
    if (first_ != 0) {
      LogWarning("stopped", {{"signal", signal}, {"reason", "second signal"}});
      FlushLog();
      _exit(128 + signal);
    }
    if (!serving_) {
      LogInfo("stopped", {{"signal", signal}, {"reason", "not serving yet"}});
      FlushLog();
      _exit(0);
    }
    first_ = signal;
    first_time = now;
    arrived_.notify_all();
  }
}

}  // namespace polysketch
