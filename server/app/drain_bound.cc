#include "server/app/drain_bound.h"

#include <unistd.h>

#include <thread>

#include "base/logging.h"

namespace polysketch {

DrainBound::DrainBound(std::chrono::milliseconds time) {
  std::thread([this, time] {
    std::this_thread::sleep_for(time);
    LogWarning("stopped",
               {{"reason", "the drain did not end in time"}, {"status", exit_status_.load()}});
    FlushLog();
    _exit(exit_status_.load());
  }).detach();
}

}  // namespace polysketch
