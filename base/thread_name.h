// Names of threads, as /proc and debuggers show them. server/metrics/scrape.cc separates the CPU
// time of the model from that of the server by the names below.
#pragma once

#include <pthread.h>

namespace polysketch {

inline constexpr char kEngineThreadName[] = "ps-engine";
inline constexpr char kPoolThreadName[] = "ps-pool";

// Names the calling thread; at most 15 characters. Threads that it starts inherit the name.
inline void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace polysketch
