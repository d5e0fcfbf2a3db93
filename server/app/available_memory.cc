#include "server/app/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace polysketch {

std::optional<int64_t> MemoryOfCgroup(std::string_view cgroups, const std::string& root) {
  constexpr std::string_view kVersion2 = "0::/";
  std::optional<int64_t> least;
  std::istringstream lines{std::string(cgroups)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kVersion2)) continue;
    std::string path = line.substr(kVersion2.size() - 1);  // "/", "/a/b"
    while (true) {
      int64_t limit = 0;  // a group without a limit has "max", the root has no file
      if (std::ifstream(root + path + "/memory.max") >> limit && limit > 0)
        least = std::min(least.value_or(limit), limit);
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return least;
}

int64_t AvailableMemory() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ostringstream cgroups;
  cgroups << std::ifstream("/proc/self/cgroup").rdbuf();
  return std::min(machine, MemoryOfCgroup(cgroups.str(), "/sys/fs/cgroup").value_or(machine));
}

int64_t DefaultRequestMemory(int64_t available) {
  return std::clamp(available / 16, int64_t{64} << 20, int64_t{2} << 30);
}

int64_t DefaultGrammarMemory(int64_t available) {
  return std::clamp(available / 16, int64_t{64} << 20, int64_t{1} << 30);
}

}  // namespace polysketch
