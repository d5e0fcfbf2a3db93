#include "server/app/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "server/app/control_groups.h"

namespace polysketch {

std::optional<int64_t> MemoryOfGroups(const std::vector<std::string>& folders) {
  std::optional<int64_t> least;
  for (const std::string& folder : folders) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      int64_t limit = 0;  // a group without a limit has "max", the root has no file
      if (std::ifstream(folder + name) >> limit && limit > 0)
        least = std::min(least.value_or(limit), limit);
    }
  }
  return least;
}

int64_t AvailableMemory() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(machine, MemoryOfGroups(ControlGroupFolders("memory")).value_or(machine));
}

int64_t DefaultRequestMemory(int64_t available) {
  return std::clamp(available / 16, int64_t{64} << 20, int64_t{2} << 30);
}

int64_t DefaultGrammarMemory(int64_t available) {
  return std::clamp(available / 16, int64_t{64} << 20, int64_t{1} << 30);
}

}  // namespace polysketch
