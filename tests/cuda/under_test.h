// The cuda backend as the tests of this folder run it: on a GPU (device.cc; skipped without one),
// or its own sources on the host under tests/simt (emulated.cc). The tests are the same; the
// emulation takes small counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"

namespace polysketch::testing {

// Null, with the reason, where there is no GPU.
std::unique_ptr<Backend> NewBackendUnderTest(std::string* reason);

// True under the emulation.
bool Emulated();

// Recordings of steps replayed so far under the emulation; 0 on a GPU.
int64_t Replays();

// Draws the order in which the emulation runs warps; nothing on a GPU.
void SeedSchedule(uint64_t seed);

// Backends opened from now on have so much shared memory for a block; nothing on a GPU.
void SetSharedLimit(int64_t bytes);
inline constexpr int64_t kH100Shared = 227 << 10;

}  // namespace polysketch::testing
