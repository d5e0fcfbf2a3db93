// The memory that this process may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace polysketch {

// Bytes: the memory of the machine, or the least limit of the control group and of the groups above
// it if that is less.
int64_t AvailableMemory();

// The least limit of the groups with these folders (ControlGroupFolders): memory.max of cgroup v2,
// memory.limit_in_bytes of v1. nullopt without one.
std::optional<int64_t> MemoryOfGroups(const std::vector<std::string>& folders);

// The default of --request-memory: a sixteenth of `available`, so that weights and states keep the
// rest; at least 64 MiB, the room of several of the largest messages, and at most 2 GiB, more than
// clients of one process need at once.
int64_t DefaultRequestMemory(int64_t available);

// The default of --grammar-memory: a sixteenth of `available`; at least 64 MiB, since a large
// grammar takes some tens, and at most 1 GiB.
int64_t DefaultGrammarMemory(int64_t available);

}  // namespace polysketch
