#include "server/app/drain_bound.h"

#include <unistd.h>

#include <future>
#include <thread>
#include <utility>

#include "base/logging.h"

namespace polysketch {
namespace {

// For the last lines of the log, whose reader may have stalled.
constexpr std::chrono::milliseconds kLogPatience{150};

void FlushLogFor(std::chrono::milliseconds patience) {
  std::packaged_task<void()> flush(FlushLog);
  const std::future<void> flushed = flush.get_future();
  std::thread(std::move(flush)).detach();
  flushed.wait_for(patience);
}

}  // namespace

DrainBound::DrainBound(std::chrono::milliseconds time) {
  std::thread([this, time] {
    std::this_thread::sleep_for(time);
    LogWarning("stopped",
               {{"reason", "the drain did not end in time"}, {"status", exit_status_.load()}});
    FlushLogFor(kLogPatience);
    _exit(exit_status_.load());
  }).detach();
}

}  // namespace polysketch
