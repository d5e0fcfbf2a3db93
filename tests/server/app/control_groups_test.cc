// Limits of the control group and of the groups above it, in made-up hierarchies.
#include "server/app/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/app/available_memory.h"
#include "server/app/cpus.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;

class ControlGroups : public ::testing::Test {
 protected:
  ControlGroups() { fs::remove_all(root_); }
  ~ControlGroups() override { fs::remove_all(root_); }

  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  // A line of mountinfo: the group `root` is shown at a folder below root_.
  std::string Mount(const std::string& root, const std::string& point, const std::string& type,
                    const std::string& options = "rw") {
    return StrCat("25 20 0:22 ", root, " ", (root_ / point).string(), " rw,nosuid shared:4 - ",
                  type, " cgroup ", options, "\n");
  }
  static std::optional<int> Cpus(const std::string& cgroups, const std::string& mounts) {
    return CpusOfGroups(ControlGroupFolders(cgroups, mounts, "cpu"));
  }
  static std::optional<int64_t> Memory(const std::string& cgroups, const std::string& mounts) {
    return MemoryOfGroups(ControlGroupFolders(cgroups, mounts, "memory"));
  }

  const fs::path root_ = fs::path(::testing::TempDir()) / StrCat("groups-", getpid());
};

TEST_F(ControlGroups, TheLeastQuotaOfAllGroupsCounts) {
  const std::string mounts = Mount("/", "unified", "cgroup2");
  const std::string own = "0::/system.slice/polysketch-server.service\n";
  EXPECT_EQ(Cpus(own, mounts), std::nullopt);
  // CPUQuota= of a unit of systemd is a limit of its own group.
  Write("unified/system.slice/polysketch-server.service/cpu.max", "150000 100000");
  EXPECT_EQ(Cpus(own, mounts), 1);
  Write("unified/system.slice/polysketch-server.service/cpu.max", "800000 100000");
  EXPECT_EQ(Cpus(own, mounts), 8);
  Write("unified/system.slice/cpu.max", "400000 100000");
  EXPECT_EQ(Cpus(own, mounts), 4);
  Write("unified/cpu.max", "max 100000");
  EXPECT_EQ(Cpus(own, mounts), 4);
  EXPECT_EQ(Cpus("0::/other.slice\n", mounts), std::nullopt);
}

TEST_F(ControlGroups, Version1) {
  const std::string mounts = Mount("/", "memory", "cgroup", "rw,memory") +
                             Mount("/", "cpu,cpuacct", "cgroup", "rw,cpu,cpuacct") +
                             Mount("/", "cpuset", "cgroup", "rw,cpuset");
  const std::string own = "11:memory:/m\n5:cpu,cpuacct:/a/b\n4:cpuset:/s\n0::/u\n";
  Write("cpu,cpuacct/cpu.cfs_quota_us", "-1");
  Write("cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Cpus(own, mounts), std::nullopt);
  Write("cpu,cpuacct/a/cpu.cfs_quota_us", "300000");
  Write("cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Cpus(own, mounts), 3);
  Write("cpu,cpuacct/a/b/cpu.cfs_quota_us", "50000");
  Write("cpu,cpuacct/a/b/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Cpus(own, mounts), 1);
  Write("memory/m/memory.limit_in_bytes", "402653184");
  EXPECT_EQ(Memory(own, mounts), 402653184);
}

// A container sees the host's paths in /proc/self/cgroup, and its own group as the root of the
// mount.
TEST_F(ControlGroups, OfAContainer) {
  const std::string own = "0::/docker/0123/init\n";
  const std::string mounts = Mount("/docker/0123", "cgroup", "cgroup2");
  Write("cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(Cpus(own, mounts), 2);
  Write("cgroup/init/cpu.max", "100000 100000");
  EXPECT_EQ(Cpus(own, mounts), 1);
  // A group that the mount does not show.
  EXPECT_EQ(Cpus("0::/../other\n", mounts), 2);
  EXPECT_EQ(Cpus("0::/docker/01234\n", mounts), 2);
  EXPECT_EQ(Cpus("0::/\n", mounts), 2);
}

TEST_F(ControlGroups, TheLeastMemoryOfAllGroupsCounts) {
  const std::string mounts = Mount("/", "a\\040b", "cgroup2");
  const std::string own = "5:cpu:/x\n0::/a/b\n";
  EXPECT_EQ(Memory(own, mounts), std::nullopt);
  Write("a b/a/b/memory.max", "max");
  EXPECT_EQ(Memory(own, mounts), std::nullopt);
  Write("a b/a/memory.max", "402653184");
  EXPECT_EQ(Memory(own, mounts), 402653184);
  Write("a b/a/b/memory.max", "1048576");
  EXPECT_EQ(Memory(own, mounts), 1048576);
  EXPECT_EQ(Memory("0::/\n", mounts), std::nullopt);
  EXPECT_EQ(Memory("", mounts), std::nullopt);
  EXPECT_EQ(Memory(own, ""), std::nullopt);
}

TEST_F(ControlGroups, LinesOfAnotherFormAreNothing) {
  for (const std::string mounts : {"", "x", "a b c d e f", "1 2 3 / /x rw - cgroup2", "- - - -"})
    EXPECT_TRUE(ControlGroupFolders("0::/a\n:\n0:\n", mounts, "cpu").empty()) << mounts;
}

}  // namespace
}  // namespace polysketch
