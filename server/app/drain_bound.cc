#include "server/app/drain_bound.h"

#include <unistd.h>

#include <thread>

#include "base/logging.h"
#include "base/start_thread.h"

namespace polysketch {
namespace {

// For the last lines of the log, whose reader may have stalled.
constexpr std::chrono::milliseconds kLogPatience{150};

}  // namespace

DrainBound::DrainBound(std::chrono::milliseconds time) {
  StartThread([this, time] {
    started_.wait(false);
    std::this_thread::sleep_for(time);
    LogWarning("stopped",
               {{"reason", "the drain did not end in time"}, {"status", exit_status_.load()}});
    FlushLog(kLogPatience);
    _exit(exit_status_.load());
  }).detach();
}

void DrainBound::Start() {
  started_.store(true);
  started_.notify_one();
}

}  // namespace polysketch
