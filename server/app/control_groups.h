// The control groups of this process, of cgroup v1 and v2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

// The folders of the process's group and of the groups above it, as far as they are mounted, in
// each hierarchy that has `controller` ("cpu", "memory"). `cgroups`: the text of /proc/self/cgroup;
// `mounts`: that of /proc/self/mountinfo.
std::vector<std::string> ControlGroupFolders(std::string_view cgroups, std::string_view mounts,
                                             std::string_view controller);
// As above, of this process.
std::vector<std::string> ControlGroupFolders(std::string_view controller);

// The first line of a file; empty if it cannot be read.
std::string FirstLine(const std::string& path);

}  // namespace polysketch
