// The share of one owner (a client, a tenant) in a pool that owners draw from without reservations: at
// most three times what stays free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998). One
// owner alone gets three quarters of the pool, two get three sevenths each, and any number of them
// leave room for an owner that holds nothing.
#pragma once

#include <cstdint>

namespace polysketch {

inline constexpr int64_t kShareOfFree = 3;

// Whether an owner may hold `held` in all, if `free` of the pool stays free beside it.
constexpr bool IsFairShare(int64_t held, int64_t free) {
  return free >= 0 && held <= kShareOfFree * free;
}

}  // namespace polysketch
