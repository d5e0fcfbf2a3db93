// Threads that a process cannot do without. All of them start with the process: later, a limit of
// threads (pids.max of the control group, RLIMIT_NPROC) or of memory may leave none.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"

namespace polysketch {

// Starts a thread that runs `loop`. If the machine gives none, the process ends with a message and
// exit status 1.
template <typename Loop>
std::thread StartThread(Loop&& loop) {
  try {
    return std::thread(std::forward<Loop>(loop));
  } catch (const std::system_error& error) {
    EndProcess("cannot start a thread (limits: pids.max, RLIMIT_NPROC, memory)", error.what());
  }
}

}  // namespace polysketch
