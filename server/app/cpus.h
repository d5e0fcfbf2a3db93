// How many CPUs this process may use.
#pragma once

#include <optional>
#include <string_view>

namespace polysketch {

// The affinity mask, and the quota of the control group where that is less. At least 1.
int AvailableCpus();

// CPUs that cgroup v2's cpu.max grants ("200000 100000" is 2), rounded down but at least 1: more
// threads than quota would be stopped in the middle of a step. nullopt for "max" and for anything
// else.
std::optional<int> CpusOfQuota(std::string_view cpu_max);

}  // namespace polysketch
