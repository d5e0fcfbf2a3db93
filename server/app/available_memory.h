// The memory that this process may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

// Bytes: the memory of the machine, or the limit of the control group (cgroup v2, memory.max of the
// process's group and of the groups above it) if that is less.
int64_t AvailableMemory();

// As above, with the groups that `cgroups` (the text of /proc/self/cgroup) names under the folder
// `root` ("/sys/fs/cgroup"). nullopt without a limit.
std::optional<int64_t> MemoryOfCgroup(std::string_view cgroups, const std::string& root);

// The default of --request-memory: a sixteenth of `available`, so that weights and states keep the
// rest; at least 64 MiB, the room of several of the largest messages, and at most 2 GiB, more than
// clients of one process need at once.
int64_t DefaultRequestMemory(int64_t available);

// The default of --grammar-memory: a sixteenth of `available`; at least 64 MiB, since a large grammar
// takes some tens, and at most 1 GiB.
int64_t DefaultGrammarMemory(int64_t available);

}  // namespace polysketch
