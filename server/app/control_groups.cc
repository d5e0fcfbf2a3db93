#include "server/app/control_groups.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace polysketch {
namespace {

std::vector<std::string> Split(std::string_view text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

bool Contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Replaces \ooo by the byte: mountinfo escapes spaces in this way.
std::string Unescaped(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '7' ? text[at] - '0' : -1;
    };
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
      bytes.push_back(static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3)));
      i += 3;
    } else {
      bytes.push_back(text[i]);
    }
  }
  return bytes;
}

// A mounted hierarchy that has the controller.
struct Mount {
  bool version2 = false;
  std::string root;  // the group that the mount point shows
  std::string point;
};

// "36 35 0:31 ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE SUPER_OPTIONS"
std::optional<Mount> ParseMount(const std::string& line, std::string_view controller) {
  const std::vector<std::string> words = Split(line, ' ');
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (words.size() < 6 || words.end() - dash < 4) return std::nullopt;
  const bool version2 = dash[1] == "cgroup2";
  const bool version1 = dash[1] == "cgroup" && Contains(Split(dash[3], ','), controller);
  if (!version1 && !version2) return std::nullopt;
  return Mount{.version2 = version2, .root = Unescaped(words[3]), .point = Unescaped(words[4])};
}

// The path of the process's group in a hierarchy: "0::/a/b" of version 2, "4:cpu,cpuacct:/a/b".
std::optional<std::string> GroupPath(const std::vector<std::string>& lines, bool version2,
                                     std::string_view controller) {
  for (const std::string& line : lines) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool wanted =
        version2 ? controllers.empty() : Contains(Split(controllers, ','), controller);
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> ControlGroupFolders(std::string_view cgroups, std::string_view mounts,
                                             std::string_view controller) {
  std::vector<std::string> folders;
  const std::vector<std::string> groups = Split(cgroups, '\n');
  for (const std::string& line : Split(mounts, '\n')) {
    const std::optional<Mount> mount = ParseMount(line, controller);
    if (!mount) continue;
    std::string below = GroupPath(groups, mount->version2, controller).value_or("");
    const std::string root = mount->root == "/" ? "" : mount->root;
    // A group outside the mount, as a container may see it, is none of its folders.
    if (below == root || below.starts_with(root + "/")) {
      below.erase(0, root.size());
    } else {
      below.clear();
    }
    if (below.find("/..") != std::string::npos) below.clear();
    if (below == "/") below.clear();
    while (true) {
      folders.push_back(mount->point + below);
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
  }
  return folders;
}

std::vector<std::string> ControlGroupFolders(std::string_view controller) {
  const auto text = [](const char* path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path).rdbuf();
    return bytes.str();
  };
  return ControlGroupFolders(text("/proc/self/cgroup"), text("/proc/self/mountinfo"), controller);
}

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace polysketch
