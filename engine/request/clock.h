// The clock of deadlines, queues and timings.
#pragma once

#include <chrono>

namespace polysketch {

using Clock = std::chrono::steady_clock;

}  // namespace polysketch
