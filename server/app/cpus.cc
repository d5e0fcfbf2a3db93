#include "server/app/cpus.h"

#include <sched.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <thread>

#include "server/app/control_groups.h"

namespace polysketch {

std::optional<int> CpusOfQuota(std::string_view cpu_max) {
  std::istringstream text{std::string(cpu_max)};
  long long quota = 0;
  long long period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(quota / period, 1LL, 1LL << 20));
}

std::optional<int> CpusOfGroups(const std::vector<std::string>& folders) {
  std::optional<int> least;
  for (const std::string& folder : folders) {
    for (const std::string& quota :
         {FirstLine(folder + "/cpu.max"), FirstLine(folder + "/cpu.cfs_quota_us") + " " +
                                              FirstLine(folder + "/cpu.cfs_period_us")}) {
      if (const std::optional<int> cpus = CpusOfQuota(quota))
        least = std::min(least.value_or(*cpus), *cpus);
    }
  }
  return least;
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  return std::min(cpus, CpusOfGroups(ControlGroupFolders("cpu")).value_or(cpus));
}

}  // namespace polysketch
