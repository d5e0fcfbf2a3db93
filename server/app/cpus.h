// The number of CPUs that this process may use.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

// The CPUs of the affinity mask, or the least quota of the control group and of the groups above it
// if that is less. At least 1.
int AvailableCpus();

// The least quota of the groups with these folders (ControlGroupFolders); nullopt without one.
std::optional<int> CpusOfGroups(const std::vector<std::string>& folders);

// The CPUs that cpu.max of cgroup v2 grants ("200000 100000" is 2), rounded down but at least 1:
// more threads than the quota would be stopped in the middle of a step. nullopt for "max" and for
// text of another form. cpu.cfs_quota_us and cpu.cfs_period_us of cgroup v1 are such a pair.
std::optional<int> CpusOfQuota(std::string_view cpu_max);

}  // namespace polysketch
