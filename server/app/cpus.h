// The number of CPUs that this process may use.
#pragma once

#include <optional>
#include <string_view>

namespace polysketch {

// The CPUs of the affinity mask, or the quota of the control group if that is less. At least 1.
int AvailableCpus();

// The CPUs that cpu.max of cgroup v2 grants ("200000 100000" is 2), rounded down but at least 1:
// more threads than the quota would be stopped in the middle of a step. nullopt for "max" and for
// text of another form.
std::optional<int> CpusOfQuota(std::string_view cpu_max);

}  // namespace polysketch
