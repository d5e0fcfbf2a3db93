#include "server/app/cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace polysketch {

std::optional<int> CpusOfQuota(std::string_view cpu_max) {
  std::istringstream text{std::string(cpu_max)};
  long long quota = 0;
  long long period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(quota / period, 1LL, 1LL << 20));
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string line;
  if (std::getline(file, line)) cpus = std::min(cpus, CpusOfQuota(line).value_or(cpus));
  return cpus;
}

}  // namespace polysketch
