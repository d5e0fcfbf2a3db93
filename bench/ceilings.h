// What this machine reaches, measured in the same run as what is compared with it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"

namespace polysketch::bench {

// Bytes a second that `pool` reads from a working set of `bytes`, passed over and over: the
// ceiling of a decode step that reads that much. Median of several passes.
double ReadBandwidth(ThreadPool* pool, size_t bytes);

// float32 FMA throughput of `pool` in FLOP/s, register-resident, with the widest vectors that the
// machine has. 0 where it has neither AVX2 nor AVX-512.
double FmaPeak(ThreadPool* pool);

}  // namespace polysketch::bench
